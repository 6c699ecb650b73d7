"""Schedules that work out themselves when they are due."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab

from celery_hardened.beat.own import Own, fingerprint

UTC = timezone.utc
NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC).timestamp()

app = Celery(set_as_current=False)


class Clock:
    """The time of day, as the beat and the schedule's own clock have it."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Each(BaseSchedule):
    """Due *period* after the last run, by the clock that Celery gave it."""

    def __init__(self, period: float) -> None:
        super().__init__(app=app)
        self.period = period

    def is_due(self, last_run_at: datetime) -> Any:
        left = (last_run_at + timedelta(seconds=self.period) - self.now()).total_seconds()
        return (True, self.period) if left <= 0 else (False, left)


class Watching(BaseSchedule):
    """Due when something outside says so; wants to be asked every five seconds."""

    ready = False

    def __init__(self) -> None:
        super().__init__(app=app)

    def is_due(self, last_run_at: datetime) -> Any:
        self.now()
        return self.ready, 5.0


class Evening:
    """No class of Celery's, with a clock of its own: due once a day from nine on."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def is_due(self, last_run_at: datetime) -> Any:
        now = datetime.fromtimestamp(self.clock.now, UTC)
        nine = now.replace(hour=21, minute=0, second=0, microsecond=0)
        if now >= nine > last_run_at:
            return True, 86_400.0
        return False, ((nine if now < nine else nine + timedelta(days=1)) - now).total_seconds()


class Always:
    """Says yes to whoever asks, and when to ask again."""

    def is_due(self, last_run_at: datetime) -> Any:
        return True, 60.0


def test_missed_slots_are_found_one_by_one() -> None:
    """Asked about the instants it named, so that its slots do not depend on when anybody looked."""
    slots = Own(Each(60), UTC, Clock(NOW))
    assert slots.after(NOW - 600) == NOW - 540
    assert slots.count(NOW - 600, NOW) == 10
    assert slots.latest(NOW - 90) == NOW - 120


def test_the_future_is_what_it_names() -> None:
    """One period from the last run on, as often as it is asked."""
    slots = Own(Each(60), UTC, Clock(NOW))
    assert slots.after(NOW - 20) == NOW + 40
    assert slots.after(NOW + 40) == NOW + 100


def test_a_slot_is_not_early_by_a_rounded_fraction() -> None:
    """A period of thirds of seconds ends on the millisecond after, in every process on the same."""
    slots = Own(Each(1 / 3), UTC, Clock(NOW))
    assert slots.after(NOW - 600) == round(NOW - 600 + 0.334, 3)


def test_a_subclass_of_crontab_decides_itself() -> None:
    """Its own is_due, here on weekdays only, with Celery's own arithmetic below."""

    class Weekdays(crontab):
        def is_due(self, last_run_at: datetime) -> Any:
            due, left = super().is_due(last_run_at)
            return due and self.now().isoweekday() < 6, left

    saturday_noon = datetime(2026, 6, 6, 12, tzinfo=UTC).timestamp()
    slots = Own(Weekdays(hour=9, minute=0, app=app), UTC, Clock(saturday_noon + 3 * 86_400))
    assert slots.after(saturday_noon) == datetime(2026, 6, 8, 9, tzinfo=UTC).timestamp()


def test_one_that_watches_something_is_asked_when_the_time_has_come() -> None:
    """It is not due for having been looked at; and it is once it says so, about the present."""
    clock = Clock()
    Watching.ready = False
    slots = Own(Watching(), UTC, clock)
    assert slots.after(NOW) == NOW + 5
    clock.now = NOW + 5.01
    assert slots.after(NOW) == NOW + 10
    Watching.ready = True
    clock.now = NOW + 10.01
    assert slots.after(NOW) == NOW + 5


def test_one_that_watched_for_days_catches_up_with_the_present() -> None:
    """However often it wants to be asked, the walk through the past is bounded."""
    Watching.ready = False
    clock = Clock(NOW + 10 * 86_400)
    slot = Own(Watching(), UTC, clock).after(NOW)
    assert slot is not None
    assert clock.now < slot <= clock.now + 10


def test_a_clock_of_its_own_is_asked_about_the_present() -> None:
    """Ahead of nine it names nine; at nine the slot is when it said so; then tomorrow."""
    clock = Clock()
    nine = NOW + 9 * 3600
    slots = Own(Evening(clock), UTC, clock)
    assert slots.after(NOW - 86_400) == nine
    clock.now = nine + 0.0204
    fired = slots.after(NOW - 86_400)
    assert fired == nine + 0.02
    assert slots.after(fired) == nine + 86_400


@pytest.mark.parametrize("off", [-600.0, 600.0])
def test_the_present_is_that_of_the_beat(off: float) -> None:
    """Ahead of the time of day or behind it: what is named for later is later than that, what is due is due by it."""
    own_clock = Clock()
    for made, named in ((Watching(), NOW + off + 5), (Evening(own_clock), NOW + off + 9 * 3600)):
        Watching.ready = False
        slots = Own(made, UTC, Clock())
        slots.now_is(NOW + off)
        assert slots.after(NOW + off) == named
        assert slots.count(NOW + off, NOW + off) == 0
    own_clock.now += 10 * 3600
    slots.now_is(NOW + off)
    assert slots.after(NOW + off - 5) == NOW + off


def test_a_clock_of_its_own_and_a_new_process_while_it_is_due() -> None:
    """A beat that takes over does not wait for tomorrow."""
    clock = Clock(NOW + 9 * 3600 + 5)
    assert Own(Evening(clock), UTC, clock).after(NOW - 3600) == clock.now


def test_one_that_is_always_due_is_no_storm() -> None:
    """Just fired, and due at once again: it waits as long as it said, and a second at least."""
    clock = Clock(NOW + 0.02)
    slots = Own(Always(), UTC, clock)
    fired = [NOW]
    for _ in range(200):
        while (slot := slots.after(fired[-1])) is not None and slot <= clock.now:
            fired.append(slot)
        clock.now += 1
    assert fired == [NOW, NOW + 60, NOW + 120, NOW + 180]


def test_one_that_is_always_due_is_no_storm_when_firing_is_slow() -> None:
    """A publish that took five seconds is still a moment ago."""
    clock = Clock(NOW + 3600)
    slots = Own(Always(), UTC, clock)
    first = slots.after(NOW)
    assert first == clock.now
    clock.now += 5
    assert slots.after(first) == first + 60


def test_one_that_was_fired_late_is_not_held_the_next_day() -> None:
    """It said no at first, so its yes counts, whatever it had said about a day."""
    clock = Clock(NOW + 11 * 3600)
    slots = Own(Evening(clock), UTC, clock)
    fired = slots.after(NOW)
    assert fired == clock.now
    assert slots.after(fired) == NOW + 9 * 3600 + 86_400
    clock.now = NOW + 9 * 3600 + 86_400
    assert slots.after(fired) == clock.now


@pytest.mark.parametrize("seconds", [None, float("inf"), float("nan")])
def test_never_is_never(seconds: float | None) -> None:
    """A class that names no instant has no slot."""

    class Never:
        def is_due(self, last_run_at: datetime) -> Any:
            return False, seconds

    assert Own(Never(), UTC, Clock()).after(NOW) is None


def test_the_users_object_is_left_as_it_was() -> None:
    """State that it keeps is kept on a copy: its clock and its fingerprint stay."""

    class Counting(Each):
        asked = 0

        def is_due(self, last_run_at: datetime) -> Any:
            self.asked += 1
            return super().is_due(last_run_at)

    made = Counting(60)
    before = fingerprint(made)
    Own(made, UTC, Clock()).after(NOW - 600)
    assert made.nowfun is None
    assert fingerprint(made) == before


def test_what_it_raises_is_raised() -> None:
    """So that it can be said, and cost nobody else anything."""

    class Broken:
        def is_due(self, last_run_at: datetime) -> Any:
            raise LookupError("the table is gone")

    with pytest.raises(LookupError):
        Own(Broken(), UTC, Clock()).after(NOW)


def test_fingerprints() -> None:
    """Made alike, alike; made otherwise, other; its own ``mark`` before all."""
    assert fingerprint(Each(60)) == fingerprint(Each(60))
    assert fingerprint(Each(60)) != fingerprint(Each(61))
    marked = Each(60)
    marked.mark = "v2"  # type: ignore[attr-defined]
    assert fingerprint(marked) == f"{__name__}.Each:v2"
