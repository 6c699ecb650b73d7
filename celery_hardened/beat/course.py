"""Where a schedule stands, and what comes next. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo

from celery_hardened.beat.progress import brought_back, started
from celery_hardened.beat.record import Record
from celery_hardened.beat.schedule import Schedule, When
from celery_hardened.beat.slots import Between, Interval
from celery_hardened.beat.wall_clock import WallClock


@dataclass(frozen=True, slots=True)
class Course:
    """Where a schedule stands, and what comes next."""

    record: Record
    """As a beat that begins to lead now would go on with it."""

    begun: bool
    """A beat has seen it, as it is timed now. If not, its record begins when one does."""

    anchored: bool
    """Its slots are known: they hang on no anchor, or on one that is."""


def course(schedule: Schedule, text: str | None, now: float) -> Course:
    """Go on from the record that is kept as *text*, or start where a beat would."""
    old = None
    if text:
        try:
            old = Record.parse(text)
        except ValueError:
            old = None  # damaged: it starts afresh, and beat says so
    begun = old is not None and old.mark == schedule.mark
    record = started(schedule, now, old=old)
    if begun:
        record = brought_back(record, now, schedule.when.anchored)
    start = schedule.not_before if schedule.not_before is not None else schedule.last_run
    hangs = isinstance(schedule.when.slots(record.anchor), Interval)
    return Course(record, begun, begun or not hangs or start is not None)


def upcoming(schedule: Schedule, found: Course, now: float) -> Iterator[float]:
    """The slots after *now*, without end. Raises whatever a user's own class raises."""
    if found.record.done or not found.anchored:
        return
    slots = Between(schedule.when.slots(found.record.anchor), schedule.start, schedule.end)
    slot = slots.after(max(now, found.record.cursor))
    while slot is not None:
        yield slot
        if schedule.one_off:
            return
        slot = slots.after(slot)


def overdue(schedule: Schedule, found: Course, now: float) -> tuple[int, float] | None:
    """How many slots nobody has decided yet, and the first of them; ``None``: none."""
    record = found.record
    if record.done or not found.anchored:
        return None
    slots = Between(schedule.when.slots(record.anchor), schedule.start, schedule.end)
    late = now - schedule.policy.grace - schedule.policy.jitter
    first = slots.after(record.cursor)
    return None if first is None or first > late else (max(1, slots.count(record.cursor, late)), first)


def zone_read_in(when: When, otherwise: tzinfo) -> tzinfo:
    """The zone that *when* is read in; *otherwise*, if it is read in none."""
    slots = when.slots(0.0)
    if isinstance(slots, WallClock):
        return slots.zone.tz
    relative = getattr(when, "relative", None)
    return relative if isinstance(relative, tzinfo) else otherwise
