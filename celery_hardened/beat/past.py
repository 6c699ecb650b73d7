"""Slots of the past that a schedule may be fired for by hand, and what became of them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_hardened.beat.course import Course
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.slots import Between, Interval

#: Outcomes of the history that mean: the task of the slot was sent.
SENT = ("fired", "backfilled")


@dataclass(frozen=True, slots=True)
class Past:
    """Slots of a range, in their order."""

    slots: Sequence[float]
    """Those that no beat will fire any more."""

    more: bool
    """There are more than *slots*, which are one more than was asked for."""

    held: Sequence[float]
    """They wait to be fired, and are left to the beats."""

    undecided: float | None
    """The first slot of those that are due, and that no beat has decided yet: left to the beats."""

    to_come: float | None
    """The first slot that is not due yet."""

    begins: float | None
    """Intervals are counted from here, and the range begins before; ``None``: it does not."""


def past_slots(schedule: Schedule, found: Course, start: float, end: float, *, now: float, most: int) -> Past:
    """The slots from *start* (included) to before *end*.

    Args:
        found: Anchored, or the schedule has no slots.
        most: So many are looked for, and one more.
    """
    # What is behind its cursor a beat never fires again. The rest it may, and then both would.
    decided = min(found.record.cursor, now)
    waiting = {slot for slot in (found.record.buffered, found.record.pending) if slot is not None}
    within = Between(schedule.when.slots(found.record.anchor), max(start, schedule.start), min(end, schedule.end))
    slots: list[float] = []
    held: list[float] = []
    slot = within.after(start - 0.001)
    while slot is not None and slot <= decided and len(slots) <= most:
        (held if slot in waiting else slots).append(slot)
        slot = within.after(slot)
    more = len(slots) > most
    return Past(
        slots=slots,
        more=more,
        held=held,
        undecided=slot if not more and slot is not None and slot <= now else None,
        to_come=slot if not more and slot is not None and slot > now else None,
        begins=found.record.anchor if isinstance(within.slots, Interval) and found.record.anchor > start else None,
    )


@dataclass(frozen=True, slots=True)
class Became:
    """What the history says of a slot. It is of bounded length: of older slots it says nothing."""

    outcome: str
    """Of the latest line."""

    sent: int = 0
    """Lines by which its task was sent."""


def became(lines: Iterable[Mapping[str, Any]], slots: Sequence[float]) -> dict[float, Became]:
    """What *lines*, newest first, say of *slots*, which ascend.

    A line may be of several slots that were not fired: from ``first`` to ``slot``.
    """
    found: dict[float, Became] = {}
    for line in reversed([*lines]):
        if "slot" in line:
            outcome = str(line.get("outcome"))
            first = bisect_left(slots, line.get("first") or line["slot"])
            after = bisect_right(slots, line["slot"])
            for slot in slots[first:after]:
                before = found.get(slot)
                found[slot] = Became(outcome, (before.sent if before else 0) + (outcome in SENT))
    return found
