"""What is kept of one schedule between two fires, and between two leaders. Pure.

Its text is opaque to Redis, which compares it whole: a step is taken only by who has read the latest one.
How it moves is in ``progress.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

#: Of the text. It goes up only when an older release would misread a newer text, never for a field more.
VERSION = 1

_DUE_SLOT = re.compile(r'"(?:last_slot|pending|buffered)":(\d+(?:\.\d+)?)[,}]')

_NEWER_FIELDS = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
_READ = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Instants are seconds since the epoch, in whole milliseconds."""

    cursor: float
    """The last slot decided, or where the schedule started."""

    anchor: float
    """What intervals count from."""

    mark: str
    """``Schedule.mark`` it belongs to."""

    fired: int = 0
    passed: Mapping[str, int] = field(default_factory=dict)
    """Slots not fired under their own name, by reason."""

    last_slot: float | None = None
    """The last slot fired."""

    last_fired: float | None = None
    """When that was."""

    buffered: float | None = None
    """A slot that waits for the run before it to end (``buffer_one``)."""

    buffered_missed: int = 0
    """Earlier slots that the buffered one stands for."""

    pending: float | None = None
    """A slot that is claimed, and whose message is not known to have arrived. Brokers other than our Redis."""

    pending_missed: int = 0
    """Earlier slots that the pending one stands for."""

    pending_after: float | None = None
    """Where the cursor was before it was claimed. ``None``: no longer a place to go back to."""

    done: bool = False
    """A one-off that was fired."""

    newer: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a newer release, kept as they are: beats of two releases may take turns."""

    def text(self) -> str:
        """Compact JSON, the same for the same record in every process; what is as in a new one is left out."""
        parts = [f'{{"v":{VERSION},"cursor":{self.cursor!r},"anchor":{self.anchor!r},"mark":{_quoted(self.mark)}']
        if self.fired:
            parts.append(f'"fired":{self.fired}')
        if self.passed:
            inner = ",".join([f"{_quoted(reason)}:{self.passed[reason]}" for reason in sorted(self.passed)])
            parts.append(f'"passed":{{{inner}}}')
        if self.last_slot is not None:
            parts.append(f'"last_slot":{self.last_slot!r}')
        if self.last_fired is not None:
            parts.append(f'"last_fired":{self.last_fired!r}')
        if self.buffered is not None:
            parts.append(f'"buffered":{self.buffered!r}')
        if self.buffered_missed:
            parts.append(f'"buffered_missed":{self.buffered_missed}')
        if self.pending is not None:
            parts.append(f'"pending":{self.pending!r}')
        if self.pending_missed:
            parts.append(f'"pending_missed":{self.pending_missed}')
        if self.pending_after is not None:
            parts.append(f'"pending_after":{self.pending_after!r}')
        if self.done:
            parts.append('"done":true')
        if self.newer:
            parts.append(_NEWER_FIELDS.encode(self.newer)[1:-1])
        return ",".join(parts) + "}"

    @classmethod
    def parse(cls, text: str | bytes) -> Record:
        """The record of a ``text()``, of this release or of one that has added fields.

        Raises:
            ValueError: It is damaged, or of a release that this one cannot read. The schedule is then to
                be started as a new one, and that is to be said.
        """
        try:
            whole = text if isinstance(text, str) else text.decode()
            kept, end = _READ(whole)
            if end != len(whole):
                raise ValueError("something follows it")
            version = kept.pop("v")
            cursor, anchor, mark = kept.pop("cursor"), kept.pop("anchor"), kept.pop("mark")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"the record of a schedule is damaged: {type(error).__name__}") from None
        if version != VERSION or version is True:
            raise ValueError(f"the record of a schedule is of version {version!r}; this release reads {VERSION}")
        take = kept.pop
        record = cls(
            cursor=cursor,
            anchor=anchor,
            mark=mark,
            fired=take("fired", 0),
            passed=take("passed", None) or {},
            last_slot=take("last_slot", None),
            last_fired=take("last_fired", None),
            buffered=take("buffered", None),
            buffered_missed=take("buffered_missed", 0),
            pending=take("pending", None),
            pending_missed=take("pending_missed", 0),
            pending_after=take("pending_after", None),
            done=take("done", False),
            newer=kept,
        )
        record._check()
        return record

    def _check(self) -> None:
        """Refuse what no release has written, before somebody computes with it."""
        for instant in (self.last_slot, self.last_fired, self.buffered, self.pending, self.pending_after):
            if instant is not None and not _is_instant(instant):
                raise ValueError(f"the record of a schedule is damaged: {instant!r} is no instant")
        for instant in (self.cursor, self.anchor):
            if not _is_instant(instant):
                raise ValueError(f"the record of a schedule is damaged: {instant!r} is no instant")
        for count in (self.fired, self.buffered_missed, self.pending_missed):
            if type(count) is not int or count < 0:
                raise ValueError(f"the record of a schedule is damaged: {count!r} is no count")
        if type(self.passed) is not dict or type(self.mark) is not str or type(self.done) is not bool:
            raise ValueError("the record of a schedule is damaged: a field is of another type")
        for count in self.passed.values():
            if type(count) is not int or count < 0:
                raise ValueError(f"the record of a schedule is damaged: {count!r} is no count")


def has_fired(text: str, slot: float) -> bool:
    """Is *slot* the last that the record *text* has fired? Not of a damaged one, or of ``""``."""
    record = record_of(text)
    return record is not None and record.last_slot == slot


def record_of(text: str) -> Record | None:
    """The record of *text*; ``None``: there is none, or it is damaged."""
    try:
        return Record.parse(text) if text else None
    except ValueError:
        return None


def latest_slot(texts: Iterable[str]) -> float | None:
    """The latest slot that was fired, or was to be, by the ``text()`` of many records; ``None``: none was."""
    return max((float(found) for text in texts for found in _DUE_SLOT.findall(text)), default=None)


def _is_instant(value: Any) -> bool:
    """A number of seconds within some 30,000 years of 1970; NaN is none."""
    return (type(value) is float or type(value) is int) and -1e12 < value < 1e12
