"""The file that ``dlq export`` writes and ``dlq import`` reads: one letter a line.

A line is a JSON object: ``v`` (version of the line), ``state``, ``stored_at``,
``audit`` and ``letter``, the envelope with its own version.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import get_args

from celery_hardened.dead_letter.contract import Audit, State, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter, dump, load
from celery_hardened.errors import EnvelopeError

#: Version of the line written by this release.
LINE_VERSION = 1


def dump_line(stored: StoredLetter) -> str:
    """Write a stored letter as one line, without the line's end."""
    line = {
        "v": LINE_VERSION,
        "state": stored.state,
        "stored_at": stored.stored_at,
        "audit": [asdict(entry) for entry in stored.audit],
        "letter": json.loads(dump(stored.letter)),
    }
    return json.dumps(line, separators=(",", ":"))


def load_line(line: bytes) -> StoredLetter:
    """Read a line.

    Raises:
        EnvelopeError: It is no such line, or a newer version wrote it.
    """
    try:
        data = json.loads(line)
        version = data["v"]
        if not isinstance(version, int) or not 1 <= version <= LINE_VERSION:
            raise EnvelopeError(f"the line's version is {version!r} and this release reads 1 to {LINE_VERSION}")
        state = data["state"]
        if state not in get_args(State):
            raise EnvelopeError(f"its state is {state!r}")
        letter = load(json.dumps(data["letter"]).encode())
        _check(letter)
        return StoredLetter(
            letter=letter,
            state=state,
            stored_at=_moment(data["stored_at"]),
            audit=tuple(
                Audit(_moment(entry["at"]), str(entry["action"]), str(entry["by"]), str(entry["why"]))
                for entry in data["audit"]
            ),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise EnvelopeError(f"{type(problem).__name__}: {problem}") from problem


#: What a field of the envelope may hold, by its annotation.
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "Reason": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": (bool,),
    "bytes": (bytes,),
    "Mapping[str, Any]": (dict,),
    "tuple[Attempt, ...]": (tuple,),
}


def _check(letter: DeadLetter) -> None:
    """A file may have been edited: one wrong field must not stop the import of all others."""
    for field in fields(letter):
        value = getattr(letter, field.name)
        if not isinstance(value, _KINDS[str(field.type)]):
            raise EnvelopeError(f"its {field.name} is {value!r}")
    if not letter.id:
        raise EnvelopeError("its id is empty")


def _moment(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise EnvelopeError(f"{value!r} is no time")
    return float(value)
