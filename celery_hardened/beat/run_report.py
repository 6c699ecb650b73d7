"""What a worker tells of one delivery of a scheduled task, once that has ended. Pure.

Reports may come twice, late, and in any order: whoever reads them asks ``later`` which of two says more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

#: Ends of a delivery after which the work goes on elsewhere, or as another message.
NOT_OVER: Final = frozenset({"retry", "waited", "requeue", "worker_lost", "lease_lost"})

#: Ends of a second message of a run: of the run itself they say nothing.
_OF_ANOTHER: Final = frozenset({"deduplicated"})

#: Characters of each text; longer ones are cut.
TEXT_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Moments are seconds since the epoch, by the worker's clock; durations are seconds."""

    schedule: str
    slot: float
    task_id: str
    outcome: str
    """As in the metric ``hardened_tasks_total``."""

    at: float
    started: float | None = None
    """``None``: nothing of it has begun."""

    runtime: float | None = None
    attempt: int = 1
    deaths: int = 0
    """Starts before this one whose process died."""

    missed: int = 0
    worker: str = ""
    error: str = ""
    """Class of what was raised."""

    letter: str = ""
    """Id of the dead letter that was written for it."""

    def text(self) -> str:
        """Compact JSON; what says nothing is left out."""
        said = {name: value for name, value in asdict(self).items() if value not in (None, "", 0)}
        return json.dumps(said, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | bytes) -> RunReport:
        """A report; fields of a newer release are ignored.

        Raises:
            ValueError: It is none.
        """
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            read = None
        if not isinstance(read, Mapping):
            raise ValueError("a report of a run is no JSON object")
        given: dict[str, Any] = {}
        for field in fields(cls):
            value = read.get(field.name)
            if value is None:
                continue
            kind, check = _KINDS[field.name]
            if not isinstance(value, kind) or isinstance(value, bool) or not check(value):
                raise ValueError(f"a report of a run is damaged: {field.name} is {value!r}")
            given[field.name] = value[:TEXT_MAX] if isinstance(value, str) else value
        try:
            return cls(**{"slot": 0.0, **given})
        except TypeError as problem:
            raise ValueError(f"a report of a run is damaged: {problem}") from None


def weight(outcome: str, letter: str = "") -> int:
    """How much an end says of the run: of a second message nothing, of a delivery that is not the last a little."""
    if outcome in _OF_ANOTHER:
        return 0
    return 1 if outcome in NOT_OVER and not letter else 2


def says_more(new: RunReport, *, outcome: str, letter: str, at: float | None) -> bool:
    """Does *new* say more of a run than what is known of it?

    A run that is over stays so, whatever comes of a second message of it; only a later end replaces an end.

    Args:
        outcome: The end that is known; empty: none.
        letter: Of that end.
        at: When that was.
    """
    if not outcome or at is None:
        return True
    known, says = weight(outcome, letter), weight(new.outcome, new.letter)
    return says > known or (says == known and new.at > at)


_TEXT = (str, lambda _: True)
#: 9999-12-30: a moment with a date in every zone.
_LAST = 253_402_128_000.0
_INSTANT = ((int, float), lambda value: 0 <= value <= _LAST)
_COUNT = (int, lambda value: 0 <= value < 10**6)

_KINDS: Final[dict[str, Any]] = {
    "schedule": (str, bool),
    "slot": _INSTANT,
    "task_id": (str, bool),
    "outcome": (str, bool),
    "at": _INSTANT,
    "started": _INSTANT,
    "runtime": ((int, float), lambda value: 0 <= value < 1e9),
    "attempt": _COUNT,
    "deaths": _COUNT,
    "missed": _COUNT,
    "worker": _TEXT,
    "error": _TEXT,
    "letter": _TEXT,
}
