"""How a record moves: a schedule starts, its slots are fired or pass, a clock is brought back. Pure.

Every function returns a new record; the store takes it for the old one or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from celery_hardened.beat.missed_run import Fire, Pass, floor_ms
from celery_hardened.beat.policy import Reason
from celery_hardened.beat.record import Record
from celery_hardened.beat.schedule import Schedule

#: An instant so far ahead is not believed: a clock was wrong when it was written.
FAR_AHEAD = 86_400.0


def started(schedule: Schedule, now: float, *, old: Record | None) -> Record:
    """The record a schedule goes on with: *old* itself, if its timing is the same.

    A new or re-timed schedule starts at its ``not_before``, or now. One that another scheduler has fired
    since starts at that ``last_run``, and its intervals count from there. A re-timed one keeps its counts
    and a claim whose message may not have arrived; no slot it has decided is decided again.
    """
    if old is not None and old.mark == schedule.mark:
        return old
    now = floor_ms(now)
    # What was taken over was taken over once: a schedule that has a record is past it, unless the edit is known.
    last_run = schedule.last_run if old is None or schedule.not_before is not None else None
    known = [floor_ms(at) for at in (schedule.not_before, last_run) if at is not None and at - now <= FAR_AHEAD]
    start = max(known, default=now)
    anchor = schedule.when.anchored(start)
    if old is None:
        return Record(cursor=start, anchor=anchor, mark=schedule.mark)
    decided = old.cursor if old.cursor - now <= FAR_AHEAD else start
    dropped = _dropped(old, "superseded")
    # Not afresh: the claim. Its message may be on its way, and nobody else knows of it.
    return replace(
        dropped, cursor=max(start, decided), anchor=anchor, mark=schedule.mark, pending_after=None, done=False
    )


def brought_back(record: Record, now: float, anchored: Callable[[float], float] = floor_ms) -> Record:
    """*record*, or what it becomes when its cursor is more than a day ahead of *now*.

    That happens when a clock was wrong and has been brought back. The schedule then goes on from now, with
    the reason ``superseded`` for a slot that was kept waiting; *anchored* is the one of its ``when``.
    """
    if record.cursor - now <= FAR_AHEAD:
        return record
    now = floor_ms(now)
    anchor = anchored(now) if record.anchor > now else record.anchor
    return replace(_dropped(record, "superseded"), cursor=now, anchor=anchor, pending_after=None)


def current(schedule: Schedule, kept: Record | None, now: float) -> Record:
    """The record to go on from: *kept* itself, or a new one for a schedule that is new or timed anew."""
    if kept is None or kept.mark != schedule.mark:
        return started(schedule, now, old=kept)
    since = schedule.not_before
    if since is not None and schedule.last_run is None and kept.cursor < floor_ms(since) <= now:
        # Its source says that it is new: it was switched off and on again while no beat was there to see.
        return started(schedule, now, old=replace(kept, mark=""))
    return brought_back(kept, now, schedule.when.anchored)


def fired(record: Record, fire: Fire, at: float, *, one_off: bool = False) -> Record:
    """*fire* was published at the instant *at*: also one that was buffered until now."""
    waited = fire.slot == record.buffered
    return replace(
        record,
        cursor=max(record.cursor, fire.slot),
        fired=record.fired + 1,
        passed=_more(record.passed, "coalesced", fire.missed),
        last_slot=fire.slot,
        last_fired=floor_ms(at),
        buffered=None if waited else record.buffered,
        buffered_missed=0 if waited else record.buffered_missed,
        done=record.done or one_off,
    )


def passed(record: Record, step: Pass) -> Record:
    """The slots of *step* are not fired."""
    return replace(record, cursor=max(record.cursor, step.upto), passed=_more(record.passed, step.reason, step.count))


def overlapped(record: Record, fire: Fire) -> Record:
    """*fire* met a run that is not over, and is dropped with those it stands for."""
    return replace(
        record,
        cursor=max(record.cursor, fire.slot),
        passed=_more(record.passed, "overlapped", 1 + fire.missed),
    )


def buffered(record: Record, slot: float, missed: int = 0) -> Record:
    """*slot* met a run that is not over, and waits for its end; if another one waits already, it is dropped."""
    if record.buffered is not None:
        return overlapped(record, Fire(slot, missed))
    return replace(record, cursor=max(record.cursor, slot), buffered=slot, buffered_missed=missed)


def buffered_fire(record: Record) -> Fire | None:
    """What is to be fired as soon as the run before it is over."""
    return None if record.buffered is None else Fire(record.buffered, record.buffered_missed)


def unbuffered(record: Record, reason: Reason) -> Record:
    """The slot that waits is not fired after all, for *reason*."""
    return _dropped(record, reason)


def claimed(record: Record, fire: Fire) -> Record:
    """*fire* is going to be published; nobody else publishes another one before it is known what became of it.

    Raises:
        ValueError: Another slot is pending.
    """
    if record.pending is not None:
        raise ValueError(f"slot {record.pending} is pending; confirm it before {fire.slot} is claimed")
    waited = fire.slot == record.buffered
    return replace(
        record,
        cursor=max(record.cursor, fire.slot),
        pending=fire.slot,
        pending_missed=fire.missed,
        pending_after=record.cursor,
        buffered=None if waited else record.buffered,
        buffered_missed=0 if waited else record.buffered_missed,
    )


def pending_fire(record: Record) -> Fire | None:
    """What is to be published again, under the same task id, by a beat that finds it."""
    return None if record.pending is None else Fire(record.pending, record.pending_missed)


def confirmed(record: Record, at: float, *, one_off: bool = False) -> Record:
    """The broker has the message of the pending slot."""
    pending = pending_fire(record)
    return record if pending is None else fired(_unclaim(record), pending, at, one_off=one_off)


def unclaimed(record: Record) -> Record:
    """The message of the pending slot is certain not to have been sent: the slot is to be decided again.

    A schedule that was re-timed meanwhile does not go back; the slot then counts as ``not_sent``.
    """
    slot, before = record.pending, record.pending_after
    if slot is None:
        return record
    if before is None:
        return abandoned(record)
    free = _unclaim(record)
    if slot <= before:
        # It came out of the buffer, behind the cursor, and goes back there.
        return buffered(free, slot, record.pending_missed)
    return replace(free, cursor=before)


def abandoned(record: Record, reason: Reason = "not_sent") -> Record:
    """The pending slot is not published for good, and those it stands for are dropped with it.

    Not ``unclaimed`` and then ``passed``: a slot that had waited would wait again.
    """
    if record.pending is None:
        return record
    return replace(_unclaim(record), passed=_more(record.passed, reason, 1 + record.pending_missed))


def _unclaim(record: Record) -> Record:
    return replace(record, pending=None, pending_missed=0, pending_after=None)


def _dropped(record: Record, reason: Reason) -> Record:
    if record.buffered is None:
        return record
    return replace(
        record,
        buffered=None,
        buffered_missed=0,
        passed=_more(record.passed, reason, 1 + record.buffered_missed),
    )


def _more(passed: Mapping[str, int], reason: Reason, count: int) -> Mapping[str, int]:
    return {**passed, reason: passed.get(reason, 0) + count} if count else passed
