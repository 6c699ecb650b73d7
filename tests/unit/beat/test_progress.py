"""How a record moves. Every slot ends as fired, or counted with a reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from celery_hardened.beat import progress
from celery_hardened.beat.missed_run import Fire, Pass
from celery_hardened.beat.record import Record
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.slots import Interval

NOW = 1_764_547_200.0
DAY = 86_400.0
RECORD = Record(cursor=NOW, anchor=NOW - 600, mark="m", fired=5, passed={"skipped": 2}, last_slot=NOW, last_fired=NOW)


@dataclass
class Every:
    """A timing whose anchors are rounded down to ten seconds."""

    mark: str = "every:60"

    def slots(self, anchor: float) -> Interval:
        return Interval(anchor, 60.0)

    def anchored(self, instant: float) -> float:
        return instant // 10 * 10


def schedule(mark: str = "every:60", *, not_before: float | None = None, last_run: float | None = None) -> Schedule:
    return Schedule(name="nightly", task="t", when=Every(mark), not_before=not_before, last_run=last_run)


def start(*, old: Record | None = None, not_before: float | None = None, last_run: float | None = None) -> Record:
    return progress.started(schedule(not_before=not_before, last_run=last_run), NOW + 3.0009, old=old)


def test_a_schedule_whose_timing_is_the_same_goes_on() -> None:
    """Edits of arguments or policy, and a restart, drop no due slot: the very same record."""
    old = replace(RECORD, cursor=NOW - 30 * DAY, mark=schedule().mark)
    assert start(old=old, not_before=NOW, last_run=NOW) is old


def test_a_new_schedule_starts_now() -> None:
    """Nothing older is missed. Read down to the millisecond, so that no slot of this moment is lost."""
    assert start() == Record(cursor=NOW + 3.0, anchor=NOW, mark=schedule().mark)


def test_a_new_schedule_starts_when_it_was_made_or_last_run() -> None:
    """Whichever is later; its intervals count from there."""
    assert start(not_before=NOW - 100) == Record(cursor=NOW - 100, anchor=NOW - 100, mark=schedule().mark)
    for not_before in (None, NOW - 100):
        taken_over = start(not_before=not_before, last_run=NOW - 55)
        assert (taken_over.cursor, taken_over.anchor) == (NOW - 55, NOW - 60)
    assert start(not_before=NOW - 10, last_run=NOW - 55).cursor == NOW - 10


def test_instants_from_a_wrong_clock_are_not_believed() -> None:
    """More than a day ahead is nobody's edit and nobody's run; a little ahead is another machine's clock."""
    assert start(not_before=NOW + 2 * DAY).cursor == NOW + 3
    assert start(last_run=NOW + 2 * DAY, not_before=NOW - 10).cursor == NOW - 10
    assert start(not_before=NOW + 60).cursor == NOW + 60


def test_a_retimed_schedule_starts_afresh_and_keeps_its_counts() -> None:
    """What waited is counted; what is claimed is not forgotten, as its message may be on its way."""
    old = replace(RECORD, cursor=NOW - DAY, buffered=NOW - DAY, buffered_missed=3, done=True, newer={"x": 1})
    old = replace(old, pending=NOW - DAY, pending_missed=1, pending_after=NOW - DAY - 60)
    new = start(old=old, not_before=NOW - 7)
    assert new == Record(
        cursor=NOW - 7,
        anchor=NOW - 10,
        mark=schedule().mark,
        fired=5,
        passed={"skipped": 2, "superseded": 4},
        last_slot=NOW,
        last_fired=NOW,
        pending=NOW - DAY,
        pending_missed=1,
        newer={"x": 1},
    )
    assert progress.unclaimed(new).cursor == NOW - 7
    assert progress.unclaimed(new).passed["not_sent"] == 2


def test_a_retimed_schedule_decides_no_slot_again() -> None:
    """An edit may be noticed after the old timing has fired a slot that the new one has, too."""
    assert start(old=RECORD, not_before=NOW - 2).cursor == NOW
    assert start(old=RECORD, not_before=NOW - 2).anchor == NOW - 10
    assert start(old=replace(RECORD, cursor=NOW + 9 * DAY), not_before=NOW - 2).cursor == NOW - 2


def test_a_retimed_schedule_was_taken_over_long_ago() -> None:
    """The last run of another scheduler says nothing of a schedule that has a record, unless the edit is known."""
    old = replace(RECORD, cursor=NOW - DAY)
    assert start(old=old, last_run=NOW - 9 * DAY).cursor == NOW + 3
    assert start(old=old, last_run=NOW - 1, not_before=NOW - 5).cursor == NOW - 1


def test_a_fire_and_a_pass_move_the_cursor_and_are_counted() -> None:
    """The slots that a run stands for are coalesced; an instant is kept to the millisecond."""
    fired = progress.fired(RECORD, Fire(NOW + 300, missed=4), NOW + 301.00077)
    assert fired == replace(
        RECORD, cursor=NOW + 300, fired=6, passed={"skipped": 2, "coalesced": 4}, last_slot=NOW + 300,
        last_fired=NOW + 301.0,
    )  # fmt: skip
    assert progress.fired(RECORD, Fire(NOW + 60), NOW + 60, one_off=True).done
    assert progress.fired(replace(RECORD, done=True), Fire(NOW + 60), NOW + 60).done
    passed = progress.passed(RECORD, Pass(NOW + 60, NOW + 180, 3, "skipped"))
    assert passed == replace(RECORD, cursor=NOW + 180, passed={"skipped": 5})
    assert RECORD.passed == {"skipped": 2}


def test_an_overlapped_fire_drops_those_it_stands_for() -> None:
    """Each is counted: none of them was run."""
    assert progress.overlapped(RECORD, Fire(NOW + 60, missed=2)) == replace(
        RECORD, cursor=NOW + 60, passed={"skipped": 2, "overlapped": 3}
    )


def test_one_slot_waits_and_the_next_are_dropped() -> None:
    """The first that waits is fired under its own name, with those it stands for; the cursor does not go back."""
    waiting = progress.buffered(RECORD, NOW + 60, 2)
    assert progress.buffered_fire(RECORD) is None
    assert progress.buffered_fire(waiting) == Fire(NOW + 60, missed=2)
    second = progress.buffered(waiting, NOW + 120, 1)
    assert (second.cursor, second.buffered, second.passed["overlapped"]) == (NOW + 120, NOW + 60, 2)
    done = progress.fired(second, Fire(NOW + 60, missed=2), NOW + 130)
    assert (done.cursor, done.buffered, done.buffered_missed) == (NOW + 120, None, 0)
    assert (done.fired, done.last_slot, done.passed["coalesced"]) == (6, NOW + 60, 2)
    dropped = progress.unbuffered(second, "paused")
    assert (dropped.buffered, dropped.buffered_missed, dropped.passed["paused"]) == (None, 0, 3)
    assert progress.unbuffered(RECORD, "paused") is RECORD


def test_a_fire_beside_a_waiting_slot_leaves_it_there() -> None:
    """A slot waits until it is fired or dropped, whatever else is fired."""
    waiting = progress.buffered(RECORD, NOW + 60, 2)
    assert progress.buffered_fire(progress.fired(waiting, Fire(NOW + 120), NOW + 120)) == Fire(NOW + 60, 2)
    assert progress.buffered_fire(progress.claimed(waiting, Fire(NOW + 120))) == Fire(NOW + 60, 2)


def test_a_claim_is_confirmed_or_taken_back() -> None:
    """Confirmed it is the fire; taken back the record is as before, and the slot is decided again."""
    fire = Fire(NOW + 300, missed=4)
    claimed = progress.claimed(RECORD, fire)
    assert (claimed.cursor, claimed.fired, claimed.last_slot) == (NOW + 300, 5, NOW)
    assert progress.pending_fire(claimed) == fire
    assert progress.confirmed(claimed, NOW + 301) == progress.fired(RECORD, fire, NOW + 301)
    assert progress.confirmed(claimed, NOW + 301, one_off=True).done
    assert progress.unclaimed(claimed) == RECORD
    assert progress.pending_fire(RECORD) is None
    assert progress.confirmed(RECORD, NOW) is progress.unclaimed(RECORD) is RECORD


def test_a_claimed_slot_that_had_waited_waits_again() -> None:
    """It lies behind the cursor, which stays: later slots are decided already."""
    waiting = progress.buffered(progress.buffered(RECORD, NOW + 60, 2), NOW + 120)
    claimed = progress.claimed(waiting, Fire(NOW + 60, missed=2))
    assert (claimed.buffered, claimed.buffered_missed, claimed.cursor) == (None, 0, NOW + 120)
    assert progress.unclaimed(claimed) == waiting
    assert progress.confirmed(claimed, NOW + 130) == progress.fired(waiting, Fire(NOW + 60, missed=2), NOW + 130)


def test_a_claim_that_is_abandoned_is_over() -> None:
    """Counted once, with those it stands for; neither decided again nor kept waiting, even if it had waited."""
    waiting = progress.buffered(RECORD, NOW + 60, 2)
    for claimed, cursor in (
        (progress.claimed(RECORD, Fire(NOW + 60, missed=2)), NOW + 60),
        (progress.claimed(waiting, Fire(NOW + 60, missed=2)), NOW + 60),
        (replace(progress.claimed(RECORD, Fire(NOW + 60, missed=2)), cursor=NOW + 90, pending_after=None), NOW + 90),
    ):
        assert progress.abandoned(claimed) == replace(RECORD, cursor=cursor, passed={"skipped": 2, "not_sent": 3})
    assert progress.abandoned(RECORD) is RECORD


def test_one_claim_at_a_time() -> None:
    """A second one would forget the first, whose message may not have arrived."""
    with pytest.raises(ValueError, match="is pending"):
        progress.claimed(progress.claimed(RECORD, Fire(NOW + 60)), Fire(NOW + 120))


def test_a_clock_that_was_brought_back_brings_its_schedules_back() -> None:
    """A cursor years ahead would be years of silence. Within a day it waits instead: no slot comes twice."""
    assert progress.brought_back(RECORD, NOW - DAY) is RECORD
    now = NOW - 9 * DAY
    ahead = replace(RECORD, buffered=NOW, buffered_missed=1, pending=NOW, pending_after=NOW - 60)
    back = progress.brought_back(ahead, now + 0.0005, Every().anchored)
    assert back == replace(RECORD, cursor=now, anchor=now, passed={"skipped": 2, "superseded": 2}, pending=NOW)
    phase = replace(RECORD, anchor=now - 3)
    assert progress.brought_back(phase, now).anchor == now - 3
    assert progress.brought_back(RECORD, now + 0.5).anchor == now + 0.5
