"""The slots of a range, with what the clock does to them, for people to read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from itertools import islice

from celery_hardened.beat.slots import Between, Slots
from celery_hardened.beat.wall_clock import WallClock
from celery_hardened.beat.zone import Span, Zone, zone_of


@dataclass(frozen=True, slots=True)
class Line:
    """One slot, or one change of the clock."""

    at: float
    """Seconds since the epoch."""

    due: bool
    """It is a slot. Otherwise the clock changes, and nothing is due because of that."""

    local: str
    """``2026-03-08 03:00:00``."""

    offset: str
    """``-04:00``."""

    note: str = ""
    """What the change of the clock means for it."""


def preview(slots: Slots, start: float, end: float, *, zone: tzinfo, most: int = 1_000) -> list[Line]:
    """What is due from *start* (included) to before *end*, oldest first, and the changes of *zone*'s clock.

    Args:
        zone: What local times are told in. A crontab's notes are about its own zone, so give that.
        most: So many slots at most; what comes after the last of them is left out.
    """
    clock = zone_of(zone)
    within = Between(slots, start, end)
    lines: list[Line] = []
    slot = within.after(start - 0.001)
    while slot is not None and len(lines) < most:
        lines.append(_line(slot, True, clock, _slot_note(_unwrapped(slots), slot, clock)))
        slot = within.after(slot)
    last = lines[-1].at if lines and slot is not None else end
    taken = {line.at for line in lines}
    for span in _changes(clock, start, last):
        if span.start not in taken:
            lines.append(
                _line(float(span.start), False, clock, _change_note(span) + _left_out(_unwrapped(slots), span))
            )
    return sorted(lines, key=lambda line: line.at)


def _line(at: float, due: bool, clock: Zone, note: str) -> Line:
    offset = clock.span(int(at // 1)).offset
    sign, (hours, seconds) = "-" if offset < 0 else "+", divmod(abs(offset), 3600)
    return Line(at, due, _local(at + offset), f"{sign}{hours:02}:{seconds // 60:02}", note)


def _slot_note(slots: Slots, slot: float, clock: Zone) -> str:
    at = int(slot // 1)
    span = clock.span(at)
    local = at + span.offset
    if slot == span.start and span.reached < local:
        jump = _change_note(span)
        fired = f", fired at {_time(local, local)}" if isinstance(slots, WallClock) and slots.fixed else ""
        lost = _left_out(slots, span)
        return jump + lost + (fired if lost else "")
    which = _which(span, local, clock)
    if not which:
        return ""
    if isinstance(slots, WallClock) and slots.fixed and which == "first":
        return f"{_time(local, local)} comes twice: fired at the first"
    return f"{_time(local, local)} comes twice: this is the {which}"


def _which(span: Span, local: int, clock: Zone) -> str:
    """Which copy of a local time that comes twice this is; empty, if it comes once."""
    if local < span.reached:
        return "second"
    after = clock.span(span.end)
    return "first" if local >= span.end + after.offset else ""


def _changes(clock: Zone, start: float, end: float) -> list[Span]:
    found = []
    span = clock.span(int(start // 1))
    while span.end < end:
        before, span = span, clock.span(span.end)
        if span.offset != before.offset:
            found.append(span)
    return found


def _change_note(span: Span) -> str:
    local = span.start + span.offset
    way = "jumps" if span.reached < local else "goes back"
    return f"the clock {way} {_time(span.reached, local)}→{_time(local, span.reached)}"


def _left_out(slots: Slots, span: Span) -> str:
    """The times of a crontab that the jump at the start of *span* leaves out."""
    local = span.start + span.offset
    if not isinstance(slots, WallClock) or span.reached >= local:
        return ""
    lost = [_time(match, local) for match in islice(slots.matches(span.reached, local - 1), 4)]
    if not lost:
        return ""
    verb = "does" if len(lost) == 1 else "do"
    return f": {', '.join(lost[:3])}{' and more' if len(lost) > 3 else ''} {verb} not exist"


def _unwrapped(slots: Slots) -> Slots:
    while isinstance(slots, Between):
        slots = slots.slots
    return slots


def _time(local: int, beside: int) -> str:
    """Hours and minutes; the date, too, if that of *beside* is another."""
    at = datetime.fromtimestamp(local, timezone.utc)
    return f"{at:%H:%M}" if local // 86_400 == beside // 86_400 else f"{at:%Y-%m-%d %H:%M}"


def _local(local: float) -> str:
    at = datetime.fromtimestamp(local, timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{at.microsecond // 1000:03}" if at.microsecond else "")
