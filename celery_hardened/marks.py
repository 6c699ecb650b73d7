"""The ``hardened`` message header: the one thing we add to a message.

A small JSON object, ignored by plain workers and producers, absent on their
messages. Reading is lenient (a foreign or damaged header must not hurt a
task), writing is strict. ``docs/reference/envelope.md`` lists the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

#: Name of the header.
HEADER = "hardened"

#: Version written into it.
VERSION = 1

#: The keyword under which arguments in the payload store are named in a message.
REFERENCE = "__hardened_payload__"

#: Failed attempts that travel with a message; older ones are dropped.
HISTORY_MAX = 20


#: The end of the calendar, 9999-12-31T23:59:59Z.
_LAST_INSTANT = 253_402_300_799.0

#: Longest text that is read from a header; what we write ourselves is shorter by far.
TEXT_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What the header says. Times are seconds since the epoch."""

    published: float | None = None
    """This publish: a retry's own, not the first one's."""

    first_published: float | None = None
    first_failed: float | None = None

    waited: float = 0.0
    """Seconds of retry delay so far. Eager mode, which does not sleep, adds it to its clock."""

    deaths: int = 0
    """Starts of this work whose process died, as far as the last publisher knew."""

    redrives: int = 0
    redrive: tuple[str, str] | None = None
    """Letter id and token, on a message that a redrive sent."""

    key: str | None = None
    """Idempotency key."""

    dedup: tuple[str, str] | None = None
    """Key of the window that this task holds, and until when: ``start``, ``finish`` or ``window``."""

    busy_since: float | None = None
    """When this message first had to wait for another run of its key."""

    slot: float | None = None
    """The instant that a schedule fired it for. Of this task alone, as all of the next five."""

    schedule: str | None = None
    missed: int = 0
    """Earlier slots of that schedule that nobody fired, and that this run stands for."""

    run: str | None = None
    """Name of the window that a scheduled run holds until it ends, so that its schedule knows of it."""

    once: bool = False
    """It may have been published twice under its id: the worker makes sure that one of them runs."""

    yields: bool = False
    """It is not to begin once a later run of its schedule has taken the window ``run``."""

    correlation_id: str | None = None
    history: tuple[tuple[float, str, str], ...] = ()
    """Failed attempts: when, worker, error class."""

    @classmethod
    def read(cls, headers: Any) -> Marks:
        """The marks in message *headers*; whatever is missing or no good is left at its default."""
        raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
        if not isinstance(raw, Mapping):
            return _NONE
        return cls(
            published=_number(raw.get("published")),
            first_published=_number(raw.get("first_published")),
            first_failed=_number(raw.get("first_failed")),
            waited=_number(raw.get("waited")) or 0.0,
            deaths=_count(raw.get("deaths")),
            redrives=_count(raw.get("redrives")),
            redrive=_pair(raw.get("redrive")),
            key=_text(raw.get("key")),
            dedup=_pair(raw.get("dedup")),
            busy_since=_number(raw.get("busy_since")),
            slot=_slot(raw.get("slot")),
            schedule=_text(raw.get("schedule")),
            missed=_count(raw.get("missed")),
            run=_text(raw.get("run")),
            once=raw.get("once") is True,
            yields=raw.get("yields") is True,
            correlation_id=_text(raw.get("correlation_id")),
            history=_history(raw.get("history")),
        )

    def header(self, *, attempt: int = 0) -> dict[str, Any]:
        """The JSON object to send; fields that say nothing are left out."""
        out: dict[str, Any] = {"v": VERSION, "published": self.published, "first_published": self.first_published}
        if attempt:
            out["attempt"] = attempt
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value or (value == 0 and value != getattr(_NONE, name)):
                out[name] = value
        return out

    @property
    def windows(self) -> tuple[tuple[str, str], ...]:
        """The deduplication windows that this task holds: the key of each, and until when."""
        if self.run is None:
            return () if self.dedup is None else (self.dedup,)
        run = (self.run, "finish")
        return (run,) if self.dedup is None else (self.dedup, run)

    def failed(self, *, at: float, worker: str, error: str) -> Marks:
        """These marks after one more failed attempt."""
        return replace(
            self,
            first_failed=self.first_failed if self.first_failed is not None else at,
            history=(*self.history, (at, worker, error))[-HISTORY_MAX:],
        )


_NONE = Marks()

_OPTIONAL = (
    "first_failed",
    "waited",
    "deaths",
    "redrives",
    "redrive",
    "key",
    "dedup",
    "busy_since",
    "slot",
    "schedule",
    "missed",
    "run",
    "once",
    "yields",
    "correlation_id",
    "history",
)


def deaths_in(headers: Any) -> int:
    """``Marks.read(headers).deaths`` alone: asked of every delivery."""
    raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return _count(raw.get("deaths")) if isinstance(raw, Mapping) else 0


def published_in(headers: Any) -> float | None:
    """``Marks.read(headers).published`` alone: asked of every start."""
    raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return _number(raw.get("published")) if isinstance(raw, Mapping) else None


def has_window(headers: Any) -> bool:
    """Does the message hold a window: a key of ``@deduplicate``, or its schedule's? Asked of every start."""
    raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return isinstance(raw, Mapping) and ("dedup" in raw or "run" in raw)


def is_once(headers: Any) -> bool:
    """May the message have been published twice? Asked of every start."""
    raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return isinstance(raw, Mapping) and "once" in raw


def is_yielding(headers: Any) -> bool:
    """Is it not to begin if a later run of its schedule has its window? Asked of every start."""
    raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return isinstance(raw, Mapping) and "yields" in raw


def is_redriven(headers: Any) -> bool:
    """Was the message sent by a redrive? Asked of every start."""
    raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return isinstance(raw, Mapping) and "redrive" in raw


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12:
        return float(value)
    return None


def _slot(value: Any) -> float | None:
    """A number that is an instant of the calendar."""
    number = _number(value)
    return number if number is not None and 0 <= number <= _LAST_INSTANT else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**6 else 0


def _text(value: Any) -> str | None:
    return value if is_header_text(value) and value else None


def _pair(value: Any) -> tuple[str, str] | None:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_header_text, value)):
        return (value[0], value[1])
    return None


def is_header_text(value: Any) -> bool:
    """Is it text that a key may be made of? JSON can say lone surrogates, which nothing can encode."""
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _history(value: Any) -> tuple[tuple[float, str, str], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    entries = [
        (float(entry[0]), str(entry[1]), str(entry[2]))
        for entry in value
        if isinstance(entry, (list, tuple)) and len(entry) == 3 and _number(entry[0]) is not None
    ]
    return tuple(entries[-HISTORY_MAX:])
