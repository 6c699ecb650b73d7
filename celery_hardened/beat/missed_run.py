"""What to do about the slots of one schedule that are due. Pure: one step at a time.

All instants are whole milliseconds here, so that "older than" means the same whoever computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from celery_hardened.beat.policy import Policy, Reason
from celery_hardened.beat.slots import Between, Slots

_TICK = 0.001


@dataclass(frozen=True, slots=True)
class Fire:
    """Fire *slot*; the cursor is then on it."""

    slot: float
    missed: int = 0
    """Earlier slots that this run stands for; their reason is ``coalesced``."""

    catchup: bool = False
    """It is one of several that are made up for: the next one comes a moment later."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Do not fire the slots from *first* to *upto*; the cursor is then on *upto*."""

    first: float
    upto: float
    count: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is due; ask again at *until*. ``None``: never."""

    until: float | None


Step: TypeAlias = Fire | Pass | Wait


def decide(
    slots: Slots,
    *,
    after: float,
    now: float,
    policy: Policy,
    offset: Callable[[float], float] = lambda _slot: 0.0,
    paused: bool = False,
    skip: float | None = None,
) -> Step:
    """The next step. It is asked again once that step was taken, with *after* moved on.

    Slots are decided in order. One that is put off by its *offset* holds up the next, so a slot is due
    when it and those before it are: never early, and later than its slot by less than the jitter.

    A slot late by ``policy.grace`` or less is on time; one older than ``policy.catchup_window`` is expired.
    The cost does not grow with the number of missed slots, if that of *slots* does not.

    Args:
        after: The last slot that was decided, or where the schedule starts.
        offset: How much later than its slot each one is fired (jitter), less than ``policy.jitter``.
        paused: Somebody has paused the schedule: what is due passes.
        skip: Somebody wants this slot, and no other, passed over. What was missed before it is decided first, and
            by itself, so that no run for it is told to be that of the skipped slot.
    """
    first = slots.after(after)
    if first is None:
        return Wait(None)
    now = floor_ms(now)
    row = _Row(slots, offset, policy.jitter)
    due = row.due(first)
    if due > now:
        return Wait(due)
    if paused:
        upto = row.last(first, now)
        return Pass(first, upto, _count(slots, after, upto), "paused")
    if skip == first:
        return Pass(first, first, 1, "skipped_by_hand")
    if skip is not None and first < skip:
        slots = Between(slots, end=skip)
        row = _Row(slots, offset, policy.jitter)
    late = round(now - policy.grace, 3)
    if due >= late:
        return Fire(first)

    if policy.catchup_window is not None and due < (oldest := round(now - policy.catchup_window, 3)):
        upto = row.last(first, round(oldest - _TICK, 3))
        return Pass(first, upto, _count(slots, after, upto), "expired")
    upto = row.last(first, round(late - _TICK, 3))
    missed = _count(slots, after, upto)
    if policy.missed_run == "skip":
        return Pass(first, upto, missed, "skipped")
    if policy.missed_run == "run_once":
        return Fire(upto, missed=missed - 1)
    if missed <= policy.max_catchup:
        return Fire(first, catchup=True)
    dropped = missed - policy.max_catchup
    return Pass(first, _nth(slots, after, dropped, first, upto), dropped, "beyond_max_catchup")


def floor_ms(instant: float) -> float:
    """The last whole millisecond not later than *instant*."""
    rounded = round(instant, 3)
    return rounded if rounded <= instant else round(rounded - _TICK, 3)


@dataclass(frozen=True, slots=True)
class _Row:
    """The slots in the order in which they fall due, which is their own."""

    slots: Slots
    offset: Callable[[float], float]
    jitter: float

    def due(self, slot: float) -> float:
        """When *slot* and all before it are due. It depends on no cursor, so no step changes it for the next."""
        due = round(slot + self.offset(slot), 3)
        if not self.jitter:
            return due
        earlier = self.slots.latest(round(slot - _TICK, 3))
        while earlier is not None and earlier + self.jitter > due:
            due = max(due, round(earlier + self.offset(earlier), 3))
            earlier = self.slots.latest(round(earlier - _TICK, 3))
        return due

    def last(self, known: float, instant: float) -> float:
        """The last slot due by *instant*, where *known* is."""
        # Before this nothing can be held up any more; behind it they are looked at one by one.
        certain = self.slots.latest(round(instant - self.jitter, 3))
        last = known if certain is None else max(known, certain)
        while self.jitter and (later := self.slots.after(last)) is not None:
            if round(later + self.offset(later), 3) > instant:
                break
            last = later
        return last


def _count(slots: Slots, after: float, upto: float) -> int:
    return max(1, slots.count(after, upto))


def _nth(slots: Slots, after: float, nth: int, first: float, last: float) -> float:
    """The *nth* slot later than *after*, found between two of them by halving."""
    low, high = round(first * 1000), round(last * 1000)
    while low < high:
        middle = (low + high) // 2
        if slots.count(after, middle / 1000) >= nth:
            high = middle
        else:
            low = middle + 1
    return low / 1000
