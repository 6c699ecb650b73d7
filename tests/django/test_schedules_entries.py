"""``beat_schedule`` of the configuration, put among the tasks in the database."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab as celery_crontab
from celery.schedules import schedule as celery_schedule
from celery.schedules import solar as celery_solar
from django_celery_beat.clockedschedule import clocked
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask, PeriodicTasks, SolarSchedule

from celery_hardened.beat.config_source import ConfigSource
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Schedule
from celery_hardened.contrib.django.models import SchedulePolicy
from celery_hardened.contrib.django.schedules.entries import Entries
from celery_hardened.contrib.django.schedules.timing_rows import TimingRows, says, spec_of
from tests.support.django_schedules import crontab, reader, sql, statements, task

UTC = timezone.utc

pytestmark = pytest.mark.usefixtures("schedules")


def an_app(entries: dict[str, Any], **conf: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update({"result_expires": None, "beat_schedule": entries, **conf})
    return app


def install(entries: dict[str, Any], alias: str, **conf: Any) -> list[tuple[str, str]]:
    """Put *entries* into the tables; names and texts of those that were refused."""
    refused = Entries(an_app(entries, **conf), alias, Policy()).install()
    return [(one.name, one.text) for one in refused]


NIGHTLY: dict[str, Any] = {
    "task": "shop.invoice_all",
    "schedule": celery_crontab(minute="30", hour="2"),
    "args": (1, "a"),
    "kwargs": {"b": None},
    "options": {"queue": "slow", "priority": 3, "headers": {"tenant": 7}, "expires": 60},
    "timezone": "Europe/Paris",
    "missed_run": "skip",
    "catchup_window": None,
}


def test_an_entry_becomes_a_row(schedules: str) -> None:
    """The schedule that is read from the tables is the one that the configuration says, mark for mark."""
    assert install({"nightly": NIGHTLY}, schedules) == []
    (read,) = reader(schedules).load()
    (said,) = ConfigSource(an_app({"nightly": NIGHTLY}), defaults=Policy()).load()
    assert isinstance(read, Schedule)
    assert isinstance(said, Schedule)
    assert (read.name, read.task, read.args, read.kwargs, read.mark, read.policy) == (
        said.name,
        said.task,
        said.args,
        said.kwargs,
        said.mark,
        said.policy,
    )
    assert read.options == {
        "queue": "slow",
        "priority": 3,
        "expires": 60,
        "headers": {"tenant": 7, "periodic_task_name": "nightly"},
    }


AT = datetime(2031, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "timing",
    [
        30,
        timedelta(hours=3),
        celery_schedule(0.25),
        celery_crontab(minute="*/5", day_of_week="mon-fri"),
        celery_crontab(minute=[0, 30], hour=4),
        clocked(AT),
    ],
    ids=["seconds", "timedelta", "quarter", "crontab", "list", "clocked"],
)
def test_each_kind_of_timing(schedules: str, timing: Any) -> None:
    """Whatever django-celery-beat has a table for comes back as it was said; a quarter of a second too."""
    entries = {"nightly": {"task": "shop.note", "schedule": timing}}
    assert install(entries, schedules) == []
    (read,) = reader(schedules).load()
    (said,) = ConfigSource(an_app(entries), defaults=Policy()).load()
    assert isinstance(read, Schedule)
    assert isinstance(said, Schedule)
    assert read.when.mark == said.when.mark
    with statements(schedules) as seen:
        assert install(entries, schedules) == []
    assert not any(statement.startswith(("INSERT", "UPDATE", "DELETE")) for statement, _ in seen)


def test_the_second_start_writes_nothing(schedules: str) -> None:
    """A hundred entries that are there already: a few statements, no write, and no stamp for others to look at."""
    entries = {f"entry {number}": {**NIGHTLY, "args": [number]} for number in range(100)}
    with statements(schedules) as seen:
        install(entries, schedules)
    assert len(seen) < 130
    stamp = PeriodicTasks.last_change()
    with statements(schedules) as seen:
        install(entries, schedules)
    assert not any(statement.startswith(("INSERT", "UPDATE", "DELETE")) for statement, _ in seen)
    assert len(seen) < 12
    assert PeriodicTasks.last_change() == stamp


def test_only_what_differs_is_written(schedules: str) -> None:
    """An entry's new arguments arrive; that its row is disabled, its last run and its description stay."""
    install({"nightly": NIGHTLY}, schedules)
    ran = datetime(2026, 6, 9, 12, tzinfo=UTC)
    PeriodicTask.objects.update(enabled=False, last_run_at=ran, total_run_count=7, description="by hand")
    before = PeriodicTasks.last_change()
    install({"nightly": {**NIGHTLY, "args": (2,), "schedule": 60.0, "timezone": None}}, schedules)
    row = PeriodicTask.objects.get()
    assert (row.args, row.interval.every, row.crontab) == ("[2]", 60, None)
    assert (row.enabled, row.last_run_at, row.total_run_count, row.description) == (False, ran, 7, "by hand")
    assert PeriodicTasks.last_change() > before


def test_policies(schedules: str) -> None:
    """What an entry says of its policy is written; what it does not say stays as somebody set it in the admin."""
    install({"nightly": {**NIGHTLY, "grace": 5.0}}, schedules)
    policy = SchedulePolicy.objects.get()
    assert policy.said() == {"missed_run": "skip", "catchup_window": None, "grace": 5.0}
    SchedulePolicy.objects.update(jitter=2.0, missed_run="run_all")
    install({"nightly": {**NIGHTLY, "grace": 6.0}}, schedules)
    assert SchedulePolicy.objects.get().said() == {
        "missed_run": "skip",
        "catchup_window": None,
        "grace": 6.0,
        "jitter": 2.0,
    }


def test_the_clean_up_deletes_nobody_elses_row(schedules: str) -> None:
    """Two equal crontabs that users have made, at the hour of Celery's own clean-up: they and their tasks stay."""
    for name in ("one", "two"):
        task(name, crontab=crontab("0", "4", "UTC"))
    assert install({}, schedules, result_expires=3600) == []
    assert set(PeriodicTask.objects.values_list("name", flat=True)) == {"one", "two", "celery.backend_cleanup"}
    assert CrontabSchedule.objects.count() == 2
    cleanup = PeriodicTask.objects.get(name="celery.backend_cleanup")
    assert (cleanup.task, cleanup.expire_seconds) == ("celery.backend_cleanup", 43_200)
    assert install({}, schedules, result_expires=3600) == []
    assert PeriodicTask.objects.count() == 3


def test_rows_are_shared(schedules: str) -> None:
    """Entries of one timing share its row, which is not changed when one of them gets another timing."""
    entries = {name: {"task": "shop.note", "schedule": 60.0} for name in ("one", "two")}
    install(entries, schedules)
    assert IntervalSchedule.objects.count() == 1
    entries["one"] = {"task": "shop.note", "schedule": 90.0}
    install(entries, schedules)
    assert {row.name: row.interval.every for row in PeriodicTask.objects.all()} == {"one": 90, "two": 60}


class Own(celery_schedule):  # type: ignore[misc]
    """A schedule class of the user's."""

    def is_due(self, last_run_at: Any) -> Any:
        return super().is_due(last_run_at)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"task": "shop.note"}, "no 'schedule'"),
        ({"schedule": 60.0}, "no 'task'"),
        ({"task": "shop.note", "schedule": Own(60.0)}, "tables cannot hold"),
        ({"task": "shop.note", "schedule": 60.0, "missd_run": "skip"}, "Did you mean 'missed_run'"),
        ({"task": "shop.note", "schedule": 60.0, "options": {"countdown": 5}}, "no column for its options countdown"),
        ({"task": "shop.note", "schedule": 60.0, "args": [object()]}, "cannot be kept"),
        (7, "is a dict"),
    ],
    ids=["schedule", "task", "class", "typo", "option", "argument", "number"],
)
def test_an_entry_that_cannot_be_kept(schedules: str, entry: Any, text: str) -> None:
    """It is told of, and the others are written."""
    refused = install({"bad": entry, "good": {"task": "shop.note", "schedule": 60.0}}, schedules)
    ((name, said),) = refused
    assert (name, text in said) == ("bad", True), said
    assert PeriodicTask.objects.get().name == "good"


def test_the_sun(schedules: str) -> None:
    """A place is found again in its row, whose columns are decimals of six places."""
    dawn = celery_solar.__new__(celery_solar)  # to make one as users do needs a library for the sun
    dawn.event, dawn.lat, dawn.lon = "sunrise", 48.1371544, -11.576124
    kind, spec = spec_of(dawn, UTC)
    row = TimingRows(schedules).row(kind, spec)
    found = SolarSchedule.objects.get()
    assert (row.pk, found.event, str(found.longitude)) == (found.pk, "sunrise", "-11.576124")
    assert says(found, spec, None)
    assert TimingRows(schedules).row(kind, spec).pk == found.pk


def test_an_unknown_zone_in_the_row_of_an_entry(schedules: str) -> None:
    """The entry puts it right, and the other entries are written."""
    install({"nightly": NIGHTLY}, schedules)
    sql(schedules, "UPDATE django_celery_beat_crontabschedule SET timezone = 'Mars/Olympus'")
    assert install({"nightly": NIGHTLY, "other": {"task": "shop.note", "schedule": 60.0}}, schedules) == []
    found = [one for one in reader(schedules).load() if isinstance(one, Schedule)]
    assert {one.name for one in found} == {"nightly", "other"}


def test_names_of_a_row_in_the_database_and_of_an_entry(schedules: str) -> None:
    """The same name is the same schedule: the entry is put into the row, which stays one."""
    row = task("nightly", crontab=crontab("0", "5"), args="[9]")
    install({"nightly": NIGHTLY}, schedules)
    found = PeriodicTask.objects.get()
    assert (found.pk, found.args) == (row.pk, '[1, "a"]')
