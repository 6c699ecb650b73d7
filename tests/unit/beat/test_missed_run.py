"""What is done about due slots, case by case. The laws are in ``test_missed_run_model.py``."""

from __future__ import annotations

from typing import Any

import pytest

from celery_hardened.beat.missed_run import Fire, Pass, Step, Wait, decide, floor_ms
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.slots import Between, Interval, Once, Slots

MINUTELY = Interval(0.0, 60.0)
DAY = 86_400.0


def step(slots: Slots = MINUTELY, *, after: float, now: float, paused: bool = False, **policy: Any) -> Step:
    return decide(slots, after=after, now=now, policy=Policy(**policy), paused=paused)


def test_nothing_is_decided_before_its_time() -> None:
    """Not by a millisecond, nor by what rounding gives away."""
    assert step(after=0.0, now=59.999) == Wait(60.0)
    assert step(after=0.0, now=59.9996) == Wait(60.0)
    assert step(after=0.0, now=119.9996, paused=True) == Pass(60.0, 60.0, 1, "paused")
    assert step(after=0.0, now=60.0) == Fire(60.0)


def test_late_within_the_grace_is_on_time() -> None:
    """Up to the grace, that included; each slot under its own name; a millisecond more is missed."""
    assert step(after=0.0, now=90.0, missed_run="skip") == Fire(60.0)
    assert step(after=0.0, now=90.001, missed_run="skip") == Pass(60.0, 60.0, 1, "skipped")
    ticks = Interval(0.0, 1.0)
    assert step(ticks, after=100.0, now=130.0, missed_run="skip") == Fire(101.0)


def test_run_once_fires_the_latest_missed_slot_and_says_how_many_it_stands_for() -> None:
    """What is on time comes after it, by itself."""
    assert step(after=0.0, now=630.5) == Fire(600.0, missed=9)
    assert step(after=600.0, now=630.5) == Wait(660.0)
    assert step(after=0.0, now=629.0) == Fire(540.0, missed=8)
    assert step(after=540.0, now=629.0) == Fire(600.0)
    # The next one is late by exactly the grace: it is not among them.
    assert step(Interval(0.0, 1.0), after=100.0, now=133.0) == Fire(102.0, missed=1)


def test_skip_fires_none_of_them() -> None:
    """But what is on time."""
    assert step(after=0.0, now=629.0, missed_run="skip") == Pass(60.0, 540.0, 9, "skipped")
    assert step(after=540.0, now=629.0, missed_run="skip") == Fire(600.0)


def test_run_all_fires_the_newest_oldest_first() -> None:
    """At most max_catchup; those before them pass in one step."""
    first = step(after=0.0, now=630.5, missed_run="run_all", max_catchup=3)
    assert first == Pass(60.0, 420.0, 7, "beyond_max_catchup")
    fired = []
    after = 420.0
    while isinstance(taken := step(after=after, now=630.5, missed_run="run_all", max_catchup=3), Fire):
        assert taken.catchup
        after = taken.slot
        fired.append(after)
    assert fired == [480.0, 540.0, 600.0]
    assert taken == Wait(660.0)


def test_a_slot_on_time_is_no_catchup() -> None:
    """It is not paced: nothing is made up for."""
    assert step(after=540.0, now=601.0, missed_run="run_all") == Fire(600.0, catchup=False)


@pytest.mark.parametrize("missed_run", ["run_once", "skip", "run_all"])
def test_what_is_older_than_the_window_has_expired(missed_run: str) -> None:
    """It passes first, whatever the policy, and is not among those that a run stands for."""
    now = 100 * 60.0
    expired = step(after=0.0, now=now, missed_run=missed_run, catchup_window=600.0)
    assert expired == Pass(60.0, 89 * 60.0, 89, "expired")
    assert step(after=89 * 60.0, now=now, catchup_window=600.0) == Fire(99 * 60.0, missed=9)
    assert step(after=89 * 60.0, now=now - 0.001, catchup_window=600.0) == Fire(99 * 60.0, missed=9)
    assert step(after=89 * 60.0, now=now + 0.001, catchup_window=600.0) == Pass(90 * 60.0, 90 * 60.0, 1, "expired")


def test_a_window_shorter_than_the_gap_between_slots() -> None:
    """A daily job missed by more than its window is not run; the next one is on time again."""
    daily = Interval(0.0, DAY)
    assert step(daily, after=0.0, now=DAY + 3600, catchup_window=1800.0) == Pass(DAY, DAY, 1, "expired")
    assert step(daily, after=DAY, now=DAY + 3600, catchup_window=1800.0) == Wait(2 * DAY)
    assert step(daily, after=0.0, now=DAY + 1700, catchup_window=1800.0) == Fire(DAY)


def test_without_a_window_nothing_expires() -> None:
    """A year of minutes is made up for by one run."""
    assert step(after=0.0, now=365 * DAY, catchup_window=None) == Fire(365 * DAY - 60, missed=365 * 1440 - 2)


def test_what_falls_due_while_paused_passes_at_once() -> None:
    """On time, missed and expired alike, in one step; what is not due yet is waited for."""
    assert step(after=0.0, now=3 * DAY, paused=True) == Pass(60.0, 3 * DAY, 3 * 1440, "paused")
    assert step(after=3 * DAY, now=3 * DAY, paused=True) == Wait(3 * DAY + 60)


def test_schedules_that_end() -> None:
    """A clocked one is fired once, also late; then nothing is ever due. So is what lies before its end."""
    assert step(Once(60.0), after=0.0, now=10.0) == Wait(60.0)
    assert step(Once(60.0), after=0.0, now=5000.0) == Fire(60.0)
    assert step(Once(60.0), after=60.0, now=5000.0) == Wait(None)
    ended = Between(MINUTELY, end=121.0)
    assert step(ended, after=0.0, now=5000.0) == Fire(120.0, missed=1)
    assert step(ended, after=120.0, now=5000.0) == Wait(None)


def test_a_cursor_ahead_of_the_clock_waits() -> None:
    """A clock that was brought back repeats no slot."""
    assert step(after=7200.0, now=3600.0) == Wait(7260.0)


def test_a_slot_is_put_off_and_holds_up_the_next() -> None:
    """In order, each no earlier than its own offset; when the first is due, so is what it held up, and on time."""
    slots = Interval(0.0, 10.0)
    policy = Policy(jitter=60.0, grace=5.0, missed_run="skip")
    later = {10.0: 50.0, 20.0: 1.0}

    def at(now: float, after: float) -> Step:
        return decide(slots, after=after, now=now, policy=policy, offset=lambda slot: later.get(slot, 59.0))

    # 0.0 is no slot of the interval: it holds up nothing.
    assert at(59.999, 0.0) == Wait(60.0)
    assert at(60.0, 0.0) == Fire(10.0)
    assert at(60.0, 10.0) == Fire(20.0)
    assert at(60.0, 20.0) == Wait(89.0)


def test_lateness_counts_from_when_a_slot_is_due() -> None:
    """A slot put off by ten minutes is not late by ten minutes when it comes."""
    policy = Policy(jitter=1200.0, grace=30.0, missed_run="skip", catchup_window=60.0)
    hourly = Interval(0.0, 3600.0)
    for now, expected in (
        (4199.0, Wait(4200.0)),
        (4230.0, Fire(3600.0)),
        (4230.1, Pass(3600.0, 3600.0, 1, "skipped")),
        (4260.1, Pass(3600.0, 3600.0, 1, "expired")),
    ):
        assert decide(hourly, after=0.0, now=now, policy=policy, offset=lambda _slot: 600.0) == expected


def test_a_clock_is_read_down_to_the_millisecond() -> None:
    """Never up: what is due at a millisecond is not due before it."""
    assert floor_ms(1_764_547_200.9999) == 1_764_547_200.999
    assert floor_ms(1_764_547_200.001) == 1_764_547_200.001
    assert all(floor_ms(ms / 1000) == ms / 1000 for ms in range(1_764_547_200_000, 1_764_547_203_000))


@pytest.mark.parametrize("missed_run", ["run_once", "skip", "run_all"])
def test_a_skipped_slot_is_passed_over_by_itself(missed_run: str) -> None:
    """When it is due, and not before; what was missed before it is decided without it, and what comes after too."""

    def skipping(skip: float, after: float, now: float, *, paused: bool = False) -> Step:
        return decide(MINUTELY, after=after, now=now, policy=Policy(missed_run=missed_run), skip=skip, paused=paused)  # type: ignore[arg-type]

    assert skipping(60.0, 0.0, 59.0) == Wait(60.0)
    assert skipping(60.0, 0.0, 60.0) == Pass(60.0, 60.0, 1, "skipped_by_hand")
    before = {"run_once": Fire(120.0, missed=1), "skip": Pass(60.0, 120.0, 2, "skipped"), "run_all": None}
    found = skipping(180.0, 0.0, 500.0)
    assert found == (before[missed_run] or Fire(60.0, catchup=True))
    assert skipping(180.0, 120.0, 500.0) == Pass(180.0, 180.0, 1, "skipped_by_hand")
    assert skipping(180.0, 180.0, 500.0) == step(after=180.0, now=500.0, missed_run=missed_run)
    assert skipping(90.0, 0.0, 60.0) == Fire(60.0)  # no slot of it, as it is timed by now
    assert skipping(60.0, 0.0, 200.0, paused=True) == Pass(60.0, 180.0, 3, "paused")
