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

#: Failed attempts that travel with a message; older ones are dropped.
HISTORY_MAX = 20


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
            correlation_id=_text(raw.get("correlation_id")),
            history=_history(raw.get("history")),
        )

    def header(self, *, attempt: int = 0) -> dict[str, Any]:
        """The JSON object to send; fields that say nothing are left out."""
        out: dict[str, Any] = {"v": VERSION, "published": self.published, "first_published": self.first_published}
        if attempt:
            out["attempt"] = attempt
        for name in ("first_failed", "waited", "deaths", "redrives", "redrive", "key", "correlation_id", "history"):
            value = getattr(self, name)
            if value:
                out[name] = value
        return out

    def failed(self, *, at: float, worker: str, error: str) -> Marks:
        """These marks after one more failed attempt."""
        return replace(
            self,
            first_failed=self.first_failed if self.first_failed is not None else at,
            history=(*self.history, (at, worker, error))[-HISTORY_MAX:],
        )


_NONE = Marks()


def deaths_in(headers: Any) -> int:
    """``Marks.read(headers).deaths`` alone: asked of every delivery."""
    raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return _count(raw.get("deaths")) if isinstance(raw, Mapping) else 0


def is_redriven(headers: Any) -> bool:
    """Was the message sent by a redrive? Asked of every start."""
    raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return isinstance(raw, Mapping) and "redrive" in raw


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12:
        return float(value)
    return None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**6 else 0


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _pair(value: Any) -> tuple[str, str] | None:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(part, str) for part in value):
        return (value[0], value[1])
    return None


def _history(value: Any) -> tuple[tuple[float, str, str], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    entries = [
        (float(entry[0]), str(entry[1]), str(entry[2]))
        for entry in value
        if isinstance(entry, (list, tuple)) and len(entry) == 3 and _number(entry[0]) is not None
    ]
    return tuple(entries[-HISTORY_MAX:])
