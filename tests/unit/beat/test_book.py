"""What the leading beat knows: which record a schedule goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import BaseSchedule

from celery_hardened.beat.clock import SteadyClock
from celery_hardened.beat.kinds import Every, Fixed, when_of
from celery_hardened.beat.missed_run import Fire
from celery_hardened.beat.own import Own
from celery_hardened.beat.record import Record
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.source import Gone
from celery_hardened.pipeline import beat_book
from celery_hardened.pipeline.beat_book import Begin, Book, Plan

MINUTELY = Schedule(name="m", task="t", when=Every("every:60000", 60.0))
NOW = 1_000_000.0


def opened(schedule: Schedule, record: Record | None, *, now: float = NOW) -> tuple[Book, list[Plan]]:
    book = Book()
    book.open([schedule], {} if record is None else {schedule.name: record.text()}, {}, now)
    return book, book.due(now, most=10)


def test_a_schedule_without_a_record_begins_with_one() -> None:
    """Its anchor and cursor are written before anything is due, so that they outlive this leader."""
    book, plans = opened(MINUTELY, None)
    assert [type(plan.step) for plan in plans] == [Begin]
    assert (plans[0].record.cursor, plans[0].text) == (NOW, "")
    book.took(plans[0], plans[0].record.text(), NOW)
    assert book.due(NOW, most=10) == []
    assert book.next_due() == NOW + 60


@pytest.mark.parametrize(("since", "fires"), [(NOW - 100.0005, False), (NOW - 1000, True), (NOW + 1000, True)])
def test_what_was_switched_on_again_unseen_starts_from_that_moment(since: float, fires: bool) -> None:
    """A row that says it is new, and was so after its record, makes up for nothing; and begins only once."""
    record = Record(cursor=NOW - 300, anchor=NOW - 600, mark=MINUTELY.mark, fired=5)
    book, plans = opened(replace(MINUTELY, not_before=since), record)
    if fires:
        assert isinstance(plans[0].step, Fire)
        return
    assert isinstance(plans[0].step, Begin)
    assert plans[0].record.fired == 5
    book.took(plans[0], plans[0].record.text(), NOW)
    assert [plan.step for plan in book.due(NOW, most=10)] == [Fire(NOW - 40.001)]


def test_what_goes_and_comes_back_is_new() -> None:
    """Its record is to be forgotten before it is decided, though it is there again in the same look."""
    book, _ = opened(MINUTELY, Record(cursor=NOW - 300, anchor=NOW - 600, mark=MINUTELY.mark))
    book.change(Gone("m"), NOW)
    book.change(MINUTELY, NOW)
    assert book.gone == {"m"}
    book.forget(["m"])
    assert [(type(plan.step), plan.text) for plan in book.due(NOW, most=10)] == [(Begin, "")]


def test_a_one_off_that_was_fired_is_told() -> None:
    """Whoever keeps it hears of it from the next leader too, if the one that fired it could not say so."""
    once = replace(MINUTELY, one_off=True)
    book, plans = opened(once, Record(cursor=NOW, anchor=NOW, mark=once.mark, done=True, last_fired=NOW - 5))
    assert plans == []
    assert book.done() == [(once, NOW - 5)]


def test_a_class_that_takes_its_time_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one schedule class takes to answer, all others wait for: so it is asked again after ten times that."""

    class Slow(BaseSchedule):  # type: ignore[misc]
        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            passed.append(2.0)
            return False, 1.0

    passed: list[float] = []
    monkeypatch.setattr(beat_book.time, "monotonic", lambda: sum(passed))
    slow = replace(MINUTELY, when=when_of(Slow(), app_timezone=timezone.utc))
    book, plans = opened(slow, Record(cursor=NOW - 1, anchor=NOW - 1, mark=slow.mark))
    assert plans == []
    due = book.next_due()
    assert due is not None
    assert due >= NOW + 20
    assert "asked less often" in book.problems["m"]


def test_a_record_that_redis_has_lost_is_written_again() -> None:
    """Its slots were decided: a schedule that knows another scheduler's last run does not fire them again."""
    seeded = replace(MINUTELY, last_run=NOW - 3600)
    record = Record(cursor=NOW - 30, anchor=NOW - 90, mark=seeded.mark, fired=7)
    book, plans = opened(seeded, record)
    assert plans == []
    book.stale("m", "", NOW)
    [plan] = book.due(NOW, most=10)
    assert (plan.step, plan.record, plan.text) == (Begin(), record, "")
    book.took(plan, record.text(), NOW)
    assert book.due(NOW, most=10) == []
    assert book.next_due() == NOW + 30


DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)


class Host:
    """A clock on the wall, which may be set, and the beat's, second by second."""

    def __init__(self, at: datetime) -> None:
        self.wall, self.monotonic = at.timestamp(), 0.0
        self.steady = SteadyClock(lambda: self.wall, lambda: self.monotonic)

    def seconds(self, count: int) -> Iterator[float]:
        for _ in range(count):
            self.wall += 1
            self.monotonic += 1
            yield self.steady.now()


class Nightly(BaseSchedule):
    """Due from two o'clock on, once a day; wants to be asked each minute. By Celery's clock, or by its *host*'s."""

    def __init__(self, host: Host | None = None) -> None:
        super().__init__()
        self.host = host

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        now = self.now() if self.host is None else datetime.fromtimestamp(self.host.wall, timezone.utc)
        return now.hour == 2 and last_run_at.date() != now.date(), 60.0


@pytest.mark.parametrize("clock", ["Celery's", "its own"])
def test_a_class_fires_only_what_it_was_asked_about(clock: str) -> None:
    """Though the beat's clock is ahead of the one on the wall, which was set back: an instant that the class has
    named, to be asked again, is not one at which it was due. The night after it is fired, once."""
    host = Host(DAY + timedelta(hours=11, minutes=58))
    slots = Own(Nightly(None if clock == "Celery's" else host), timezone.utc, lambda: host.wall)
    schedule = Schedule(name="n", task="t", when=Fixed("own:nightly", slots))
    two = (DAY + timedelta(hours=2)).timestamp()
    book, _ = opened(schedule, Record(cursor=two, anchor=two, mark=schedule.mark), now=host.steady.now())
    fired = []

    def wait(seconds: int) -> None:
        for now in host.seconds(seconds):
            for plan in book.due(now, most=10):
                assert isinstance(plan.step, Fire)
                fired.append(plan.step.slot)
                book.took(plan, replace(plan.record, cursor=plan.step.slot).text(), now)

    wait(120)
    host.wall -= 3600
    wait(3 * 3600)
    assert fired == []
    wait(13 * 3600)
    assert len(fired) == 1
    assert two + 86_400 <= fired[0] < two + 86_400 + 120
