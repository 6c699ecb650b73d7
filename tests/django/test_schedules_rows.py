"""From a row of django-celery-beat's tables to a schedule, or to what is wrong with it."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.test import override_settings
from django_celery_beat.models import ClockedSchedule, IntervalSchedule, PeriodicTask, SolarSchedule

from celery_hardened.beat.kinds import when_of
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.slots import Between
from celery_hardened.contrib.django.models import SchedulePolicy
from tests.support.django_schedules import crontab, every, only, problem, reader, sql, task

UTC = timezone.utc

pytestmark = pytest.mark.parametrize("schedules", ["sqlite"], indirect=True)

NOON = datetime(2026, 6, 9, 12, tzinfo=UTC)


def load(alias: str, **options: Any) -> list[Schedule | Problem]:
    return reader(alias, **options).load()


def slots_of(schedule: Schedule, after: datetime, count: int) -> list[str]:
    """What a beat would fire of a schedule that has no record yet, as it starts one."""
    known = [at for at in (schedule.not_before, schedule.last_run) if at is not None]
    anchor = schedule.when.anchored(max(known, default=after.timestamp()))
    slots = Between(schedule.when.slots(anchor), schedule.start, schedule.end)
    found, at = [], after.timestamp()
    for _ in range(count):
        slot = slots.after(at)
        if slot is None:
            break
        found.append(datetime.fromtimestamp(slot, UTC).strftime("%d %H:%M:%S"))
        at = slot
    return found


def test_every_column_of_a_task(schedules: str) -> None:
    """Arguments, routing and headers arrive as django-celery-beat sends them."""
    every(
        90,
        args='["a", {"b": 1}]',
        kwargs='{"c": null}',
        queue="slow",
        exchange="shop",
        routing_key="shop.slow",
        priority=0,
        headers='{"tenant": 7}',
        expire_seconds=30,
    )
    found = only(load(schedules))
    assert (found.name, found.task, found.args, found.kwargs) == (
        "invoices",
        "shop.invoice_all",
        ("a", {"b": 1}),
        {"c": None},
    )
    assert found.options == {
        "queue": "slow",
        "exchange": "shop",
        "routing_key": "shop.slow",
        "priority": 0,
        "expires": 30,
        "headers": {"tenant": 7, "periodic_task_name": "invoices"},
    }
    assert found.row == PeriodicTask.objects.get().pk


def test_typed_arguments_are_read_as_django_celery_beat_writes_them(schedules: str) -> None:
    """A date among the arguments of a ``beat_schedule`` was written in Kombu's own JSON."""
    every(args='[{"__type__": "datetime", "__value__": "2026-06-09T12:00:00+00:00"}]')
    assert only(load(schedules)).args == (NOON,)


@pytest.mark.parametrize(
    ("period", "seconds"),
    [("days", 3 * 86_400.0), ("hours", 10_800.0), ("minutes", 180.0), ("seconds", 3.0)],
)
def test_interval(schedules: str, period: str, seconds: float) -> None:
    """Each period, in the words of the same interval in the configuration: the mark is the same."""
    task(interval=IntervalSchedule.objects.create(every=3, period=period))
    assert only(load(schedules)).when.mark == when_of(seconds, app_timezone=UTC).mark


def test_crontab_of_a_zone(schedules: str) -> None:
    """A crontab is read in its own zone, and equals the same one of the configuration."""
    from celery.schedules import crontab as celery_crontab

    task(crontab=crontab("30", "2", "Europe/Paris", day_of_week="mon-fri"))
    found = only(load(schedules))
    same = when_of(celery_crontab(minute="30", hour="2", day_of_week="mon-fri"), app_timezone=UTC, zone="Europe/Paris")
    assert found.when.mark == same.mark
    assert slots_of(found, NOON, 2) == ["10 00:30:00", "11 00:30:00"]


def test_crontabs_of_all_hours_in_three_zones(schedules: str) -> None:
    """No row is left out by the hour it is due at: a beat knows all of them at any time of the day."""
    for zone in ("Pacific/Auckland", "America/Los_Angeles", "UTC"):
        for hour in range(24):
            task(f"{zone} {hour}", crontab=crontab("0", str(hour), zone))
    found = load(schedules)
    assert sum(isinstance(one, Schedule) for one in found) == 72
    assert all(len(slots_of(one, NOON, 2)) == 2 for one in found if isinstance(one, Schedule))


def test_zones_of_rows_are_not_used_when_the_project_says_so(schedules: str) -> None:
    """``DJANGO_CELERY_BEAT_TZ_AWARE = False``: a crontab is in the app's time zone."""
    task(crontab=crontab("0", "2", "Europe/Paris"))
    with override_settings(DJANGO_CELERY_BEAT_TZ_AWARE=False):
        assert slots_of(only(load(schedules)), NOON, 1) == ["10 02:00:00"]


def test_without_time_zones(schedules: str) -> None:
    """``USE_TZ = False``: a naive time is in the project's zone; ``DJANGO_CELERY_BEAT_TZ_AWARE = False``: in UTC."""
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Paris"):
        every(60, last_run_at=datetime(2026, 6, 9, 12), start_time=datetime(2026, 6, 1, 12))  # noqa: DTZ001
        found = only(load(schedules))
        assert found.last_run == NOON.timestamp() - 7200
        assert found.start == NOON.timestamp() - 7200 - 8 * 86_400
        with override_settings(DJANGO_CELERY_BEAT_TZ_AWARE=False):
            assert only(load(schedules)).last_run == NOON.timestamp()


def test_clocked(schedules: str) -> None:
    """One slot; if it passed before the row was saved, it is missed and not forgotten."""
    clock = ClockedSchedule.objects.create(clocked_time=datetime.now(UTC) - timedelta(seconds=5))
    task(clocked=clock, one_off=True)
    found = only(load(schedules))
    assert found.one_off
    assert found.not_before is not None
    assert found.when.slots(0.0).after(found.not_before) == pytest.approx(clock.clocked_time.timestamp(), abs=0.001)


def test_two_tasks_of_one_clocked_time(schedules: str) -> None:
    """They are two schedules: each has a slot of its own."""
    clock = ClockedSchedule.objects.create(clocked_time=NOON)
    for name in ("one", "two"):
        task(name, clocked=clock, one_off=True)
    assert [one.name for one in load(schedules)] == ["one", "two"]


def test_start_time_of_a_crontab(schedules: str) -> None:
    """The first run is the first slot after ``start_time``, not ``start_time`` itself, and none is before."""
    task(crontab=crontab("0", "15", "UTC"), start_time=datetime(2026, 6, 10, 14, tzinfo=UTC))
    assert slots_of(only(load(schedules)), NOON, 2) == ["10 15:00:00", "11 15:00:00"]


def test_start_time_of_an_interval(schedules: str) -> None:
    """It counts from ``start_time``, whatever ran before, and its first run is then."""
    start = datetime(2026, 6, 10, 14, tzinfo=UTC)
    day = IntervalSchedule.objects.create(every=1, period="days")
    task(interval=day, start_time=start, last_run_at=NOON - timedelta(minutes=7))
    assert slots_of(only(load(schedules)), NOON, 2) == ["10 14:00:00", "11 14:00:00"]


def test_expires_ends_the_schedule_and_each_message(schedules: str) -> None:
    """Past ``expires`` there is no slot, and what was sent before and still waits then is not run."""
    task(crontab=crontab("0", "*", "UTC"), expires=NOON + timedelta(hours=2))
    found = only(load(schedules))
    assert slots_of(found, NOON - timedelta(minutes=1), 9) == ["09 12:00:00", "09 13:00:00"]
    assert found.options["expires"] == NOON + timedelta(hours=2)


def test_solar_events_are_read(schedules: str) -> None:
    """Its place and event arrive; if the library for it is not installed, that is this row's problem alone."""
    every(name="other")
    task(solar=SolarSchedule.objects.create(event="sunrise", latitude="48.137154", longitude="11.576124"))
    found = {one.name: one for one in load(schedules)}
    assert isinstance(found["other"], Schedule)
    sun = found["invoices"]
    if isinstance(sun, Schedule):
        assert sun.when.mark == "solar:sunrise:48.137154:11.576124"
    else:
        assert "ephem" in sun.text


def test_where_a_schedule_starts(schedules: str) -> None:
    """After its last run, which also sets the phase of its interval; a row that has not run: where it was saved."""
    ran = NOON.timestamp()
    every(3600, name="ran", last_run_at=NOON)
    every(3600, name="new")
    found = {one.name: one for one in load(schedules) if isinstance(one, Schedule)}
    assert (found["ran"].last_run, found["ran"].not_before) == (ran, None)
    assert slots_of(found["ran"], NOON + timedelta(minutes=10), 1) == ["09 13:00:00"]
    saved = PeriodicTask.objects.get(name="new").date_changed.timestamp()
    assert (found["new"].last_run, found["new"].not_before) == (None, pytest.approx(saved, abs=0.002))


def test_disabled_in_the_admin_and_enabled_again(schedules: str) -> None:
    """django-celery-beat forgets when it ran last, and it starts where it was enabled: nothing is made up for."""
    row = every(60, last_run_at=NOON)
    row.enabled = False
    row.save()
    assert load(schedules) == []
    row.enabled = True
    row.save()
    found = only(load(schedules))
    assert found.last_run is None
    assert found.not_before == pytest.approx(row.date_changed.timestamp(), abs=0.002)


def test_a_one_off_that_has_run(schedules: str) -> None:
    """django-celery-beat counts its run before it switches it off: it is not run again in between."""
    every(60, one_off=True, total_run_count=1, last_run_at=NOON)
    assert load(schedules) == []


def test_policy(schedules: str) -> None:
    """What the row beside it says; an empty field, and a task without such a row, are as the app says."""
    defaults = Policy(missed_run="skip", grace=10.0)
    every(name="plain")
    SchedulePolicy.objects.create(
        periodic_task=every(name="own"), missed_run="run_all", catchup_window=-1.0, jitter=2.5
    )
    found = {one.name: one for one in load(schedules, policy=defaults) if isinstance(one, Schedule)}
    assert found["plain"].policy is defaults
    assert found["own"].policy == Policy(missed_run="run_all", catchup_window=None, grace=10.0, jitter=2.5)


BAD = [
    ("UPDATE django_celery_beat_crontabschedule SET minute = '61'", "crontab"),
    ("UPDATE django_celery_beat_crontabschedule SET hour = 'noon'", "crontab"),
    ("UPDATE django_celery_beat_crontabschedule SET timezone = 'Mars/Olympus'", "Mars/Olympus"),
    ("UPDATE django_celery_beat_periodictask SET args = '[1' WHERE name = 'bad'", "arguments are no JSON"),
    ("UPDATE django_celery_beat_periodictask SET args = '{}1' WHERE name = 'bad'", "arguments are no JSON"),
    ("UPDATE django_celery_beat_periodictask SET args = '{\"a\": 1}' WHERE name = 'bad'", "have to be a list"),
    ("UPDATE django_celery_beat_periodictask SET kwargs = '[1]' WHERE name = 'bad'", "have to be an object"),
    ("UPDATE django_celery_beat_periodictask SET headers = '7' WHERE name = 'bad'", "headers are JSON of another kind"),
    ("UPDATE django_celery_beat_periodictask SET crontab_id = NULL WHERE name = 'bad'", "has no schedule"),
    ("UPDATE django_celery_beat_periodictask SET crontab_id = 999 WHERE name = 'bad'", "not there any more"),
    (
        "INSERT INTO celery_hardened_schedule_policy (periodic_task_id, missed_run) "
        "SELECT id, 'sometimes' FROM django_celery_beat_periodictask WHERE name = 'bad'",
        "missed_run is 'sometimes'",
    ),
    (
        "INSERT INTO celery_hardened_schedule_policy (periodic_task_id, catchup_window, grace) "
        "SELECT id, 5, 60 FROM django_celery_beat_periodictask WHERE name = 'bad'",
        "shorter than grace",
    ),
]


@pytest.mark.parametrize(("statement", "text"), BAD)
def test_a_bad_row_affects_itself(schedules: str, statement: str, text: str) -> None:
    """It is told of by name, with what is wrong; the others are there; and nothing is disabled or rewritten."""
    task("bad", crontab=crontab())
    every(name="good")
    sql(schedules, statement)
    before = list(PeriodicTask._base_manager.defer("crontab").values_list("name", "enabled", "args", "date_changed"))
    found = {one.name: one for one in load(schedules)}
    assert isinstance(found["good"], Schedule)
    assert text in problem([found["bad"]])
    assert before == list(PeriodicTask._base_manager.values_list("name", "enabled", "args", "date_changed"))


@pytest.mark.parametrize(
    ("every_", "period"), [(0, "seconds"), (-5, "minutes"), (1, "microseconds"), (3, "fortnights")]
)
def test_an_interval_that_cannot_be(schedules: str, every_: int, period: str) -> None:
    """No period, a backward one, one too short to keep up with, and an unknown unit."""
    task(interval=IntervalSchedule.objects.create(every=every_, period=period))
    every(name="good")
    assert [type(one) for one in load(schedules)] == [Problem, Schedule]


def test_a_bad_row_says_no_argument(schedules: str) -> None:
    """A problem is shown and logged: it quotes no argument's value."""
    every(args='["4111 1111 1111 1111"', kwargs="{}")
    assert "4111" not in problem(load(schedules))


def test_no_end_and_no_start(schedules: str) -> None:
    """A row without either has slots for ever."""
    every()
    assert (only(load(schedules)).start, only(load(schedules)).end) == (-math.inf, math.inf)
