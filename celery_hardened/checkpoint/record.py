"""What a checkpoint says, as text: versioned JSON, so that another release can tell whether it can read it.

::

    {"v": 1, "state": whatever save() got, "loops": {name of the loop: rows done},
     "inside": {name of a loop: the loop in whose row it was begun}}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kombu.utils.json import dumps, loads

VERSION = 1


@dataclass(slots=True)
class Record:
    """One checkpoint. The state is held as text: what the task does to the object later is not saved."""

    state: str | None = None
    """JSON of what ``save()`` got; ``None``: it was never called."""

    loops: dict[str, int] = field(default_factory=dict)
    """Rows done, by the name of the loop."""

    inside: dict[str, str] = field(default_factory=dict)
    """Loops that were begun in a row of another one, which is not done: that one's name, by theirs."""

    @classmethod
    def read(cls, raw: bytes | None) -> Record:
        """The record in *raw*. Raises ``ValueError``, which says what is wrong with it."""
        if raw is None:
            return cls()
        try:
            found = loads(raw)
        except Exception as problem:
            raise ValueError(f"what is stored is no JSON ({type(problem).__name__})") from problem
        if not isinstance(found, dict) or found.get("v") != VERSION:
            version = found.get("v") if isinstance(found, dict) else None
            raise ValueError(f"what is stored is of version {version!r}, and this release reads {VERSION}")
        loops = found.get("loops")
        if not isinstance(loops, dict) or not all(type(done) is int and done >= 0 for done in loops.values()):
            raise ValueError("what is stored does not say how many rows are done")
        inside = found.get("inside", {})
        if not isinstance(inside, dict) or not all(type(outer) is str for outer in inside.values()):
            raise ValueError("what is stored does not say which loops are inside of which")
        return cls(state=dumps(found["state"]) if "state" in found else None, loops=loops, inside=inside)

    def dump(self) -> bytes:
        """As it is stored."""
        state = "" if self.state is None else f'"state":{self.state},'
        inside = f',"inside":{dumps(self.inside)}' if self.inside else ""
        return f'{{"v":{VERSION},{state}"loops":{dumps(self.loops)}{inside}}}'.encode()

    def begin(self, name: str, outer: str | None) -> int:
        """Loop *name* begins, in a row of *outer*; how many of its rows are done."""
        if outer is None:
            self.inside.pop(name, None)
        else:
            self.inside[name] = outer
        return self.loops.get(name, 0)

    def row_done(self, name: str, done: int) -> list[str]:
        """*done* rows of loop *name* are done. Loops inside of the last one are forgotten: their names.

        Also those that an earlier run began there and this one did not. The next row's would go on where
        they were left, and skip rows of its own.
        """
        self.loops[name] = done
        forgotten: list[str] = []
        outers = {name}
        while inner := [one for one, outer in self.inside.items() if outer in outers]:
            for one in inner:
                del self.inside[one]
                self.loops.pop(one, None)
            forgotten += inner
            outers = set(inner)
        return forgotten

    def keep(self, state: Any) -> None:
        """Make *state* the state. Raises ``ValueError``, which says what is wrong with it, and changes nothing."""
        try:
            text = dumps(state)
            text.encode()
        except Exception as problem:
            raise ValueError(f"the state is no JSON: {problem}") from problem
        self.state = text

    def value(self, default: Any) -> Any:
        """The state as JSON brings it back, new each time; *default* if there is none."""
        return default if self.state is None else loads(self.state)
