"""Edits of the tables are found, and only what they touch is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from django.db import transaction
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    PeriodicTasks,
    SolarSchedule,
)

from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.source import Change
from celery_hardened.contrib.django.models import SchedulePolicy
from celery_hardened.contrib.django.schedules import reader as reading
from celery_hardened.contrib.django.schedules.reader import Reader
from celery_hardened.contrib.django.schedules.rows import Rows
from celery_hardened.contrib.django.schedules.source import DatabaseSource
from tests.support.django_schedules import (
    Clock,
    crontab,
    elsewhere,
    every,
    many,
    names,
    only,
    reader,
    sql,
    statements,
    task,
)
from tests.support.until import until

pytestmark = pytest.mark.usefixtures("patient_source")

UTC = timezone.utc

#: Promised: 1 s after a stamp, and 5 s without one. A busy machine may stand still for seconds.
SEEN = 30.0


@pytest.fixture
def source(schedules: str) -> Iterator[DatabaseSource]:
    """The source of a beat that leads, on its own thread and connection."""
    app = Celery("shop", set_as_current=False)
    app.conf.result_expires = None  # no entry for the clean-up
    made = DatabaseSource(app, defaults=Policy())
    made.open(lambda: None)
    made.lead(True)
    yield made
    made.close()


def seen(source: DatabaseSource) -> list[Change]:
    """The next changes."""
    found: list[Change] = []

    def some() -> bool:
        found.extend(source.changes())
        return bool(found)

    until(some, within=SEEN, what="the edit to be seen")
    return found


# --- edits that leave a stamp --------------------------------------------------------------------------------------


def _save(row: Any) -> None:
    row.args = "[7]"
    row.save()


def _save_interval(row: Any) -> None:
    row.interval.every = 7
    row.interval.save()


def _save_policy(row: Any) -> None:
    SchedulePolicy.objects.create(periodic_task=row, overlap="skip")


def _update_and_say_so(row: Any) -> None:
    PeriodicTask.objects.filter(pk=row.pk).update(enabled=False)
    PeriodicTasks.update_changed()


STAMPING: list[tuple[Callable[[Any], None], str]] = [
    (_save, "Schedule"),
    (_save_interval, "Schedule"),
    (_save_policy, "Schedule"),
    (lambda row: row.delete(), "Gone"),
    (_update_and_say_so, "Gone"),
]


@pytest.mark.parametrize(("edit", "kind"), STAMPING, ids=["save", "interval", "policy", "delete", "update_changed"])
def test_an_edit_that_leaves_a_stamp(
    source: DatabaseSource,
    schedules: str,
    edit: Callable[[Any], None],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Saved in the admin, and seen by the beat's next looks, without a restart; other schedules are not touched."""
    monkeypatch.setattr(reading, "EVERY", 1e9)  # not by the checksums of every four seconds
    other = IntervalSchedule.objects.create(every=60, period="seconds")
    task("other", interval=other)
    row = every()
    assert len(source.load()) == 2
    with transaction.atomic(using=schedules):  # as the admin does: the stamp is there with the row
        edit(row)
    assert names(seen(source)) == [(kind, "invoices")]


# --- edits that leave none --------------------------------------------------------------------------------------


def _sql_on(table: str, assignment: str) -> Callable[[str], None]:
    return lambda alias: sql(alias, f"UPDATE {table} SET {assignment}")


UNSTAMPING: list[tuple[str, Callable[[str], Any], str]] = [
    ("update", lambda _: PeriodicTask.objects.update(args="[7]"), "Schedule"),
    ("disable", lambda _: PeriodicTask.objects.update(enabled=False), "Gone"),
    ("policy", lambda _: SchedulePolicy.objects.update(overlap="skip"), "Schedule"),
    ("policy_gone", lambda _: SchedulePolicy.objects.all()._raw_delete(connections_alias()), "Schedule"),
    ("sql", _sql_on("django_celery_beat_periodictask", "queue = 'slow'"), "Schedule"),
    (
        "sql_delete",
        lambda alias: (
            sql(alias, "DELETE FROM celery_hardened_schedule_policy"),
            sql(alias, "DELETE FROM django_celery_beat_periodictask"),
        ),
        "Gone",
    ),
    ("crontab", _sql_on("django_celery_beat_crontabschedule", "minute = '7'"), "Schedule"),
    ("timezone", _sql_on("django_celery_beat_crontabschedule", "timezone = 'Asia/Tokyo'"), "Schedule"),
]


def connections_alias() -> str:
    from django.db import router

    return str(router.db_for_write(PeriodicTask))


@pytest.mark.parametrize(("edit", "kind"), [case[1:] for case in UNSTAMPING], ids=[case[0] for case in UNSTAMPING])
def test_an_edit_that_leaves_no_stamp(
    source: DatabaseSource, schedules: str, edit: Callable[[str], Any], kind: str
) -> None:
    """``queryset.update()``, SQL and deletes past the models are seen all the same, within five seconds."""
    row = task(crontab=crontab())
    SchedulePolicy.objects.create(periodic_task=row, grace=5.0)
    source.load()
    until(lambda: not source.changes(), within=SEEN, what="what was saved before to be settled")
    edit(schedules)
    assert names(seen(source)) == [(kind, "invoices")]


@pytest.mark.parametrize("kind", ["interval", "solar", "clocked"])
def test_sql_on_each_table_of_timings(schedules: str, kind: str) -> None:
    """A row of a timing that is edited past its model changes each task that hangs on it."""
    made: Any = {
        "interval": lambda: IntervalSchedule.objects.create(every=60, period="seconds"),
        "solar": lambda: SolarSchedule.objects.create(event="sunrise", latitude="48", longitude="-1"),
        "clocked": lambda: ClockedSchedule.objects.create(clocked_time=datetime(2031, 1, 1, tzinfo=UTC)),
    }[kind]()
    for name in ("one", "two"):
        task(name, one_off=kind == "clocked", **{kind: made})
    watching = reader(schedules, Clock(time.time()))
    watching.load()
    assignment = {
        "interval": "every = 61",
        "solar": "longitude = -2",
        "clocked": "clocked_time = '2031-01-02 00:00:00'",
    }
    sql(schedules, f"UPDATE {made._meta.db_table} SET {assignment[kind]}")
    watching._monotonic.at += 10  # type: ignore[attr-defined]
    assert [name for _, name in names(watching.look())] == ["one", "two"]


# --- what is read for it ------------------------------------------------------------------------------------------


def test_one_changed_row_among_ten_thousand(schedules: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the bucket of that row is read: one statement of sums, and one of about a hundred rows."""
    many(10_000)
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    assert len(watching.load()) == 10_000
    spent = []
    for number in range(3):
        sql(schedules, f"UPDATE django_celery_beat_periodictask SET args = '[-{number + 1}]' WHERE name = 'task 77'")
        clock.at += 10
        with statements(schedules) as seen:
            began = time.thread_time()
            assert only(watching.look()).args == (-number - 1,)
            spent.append((time.thread_time() - began) * 1000)
        (asked,) = [rows for statement, rows in seen if "c_date_changed" in statement]
        assert asked in (-1, *range(99, 103))  # SQLite does not say
        assert len(seen) <= 4
    with statements(schedules) as seen:
        began = time.thread_time()
        assert watching.look() == []
        idle = (time.thread_time() - began) * 1000
    assert len(seen) == 1
    with capsys.disabled():
        print(f"\n[{schedules}] one of 10,000 changed: {min(spent):.1f} ms CPU; a quiet look: {idle:.2f} ms")  # noqa: T201 - reported, not asserted


@pytest.mark.parametrize("schedules", ["sqlite"], indirect=True)
def test_a_quiet_look_at_a_file(schedules: str) -> None:
    """SQLite says itself whether anybody wrote: while nobody does, no table is looked at, however long."""
    every()
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    watching.load()
    with statements(schedules) as seen:
        for _ in range(10):
            clock.at += 60
            assert watching.look() == []
    assert {statement for statement, _ in seen} == {"PRAGMA data_version"}


def test_a_stamp_without_a_change(schedules: str) -> None:
    """The tables are compared, nothing is read and nothing is restarted: the schedules stay as they are."""
    every()
    watching = reader(schedules)
    watching.load()
    with statements(schedules) as seen:
        sql(schedules, "INSERT INTO django_celery_beat_periodictasks VALUES (2, '2026-01-01 00:00:00')")
        sql(schedules, "UPDATE django_celery_beat_periodictasks SET last_update = '2026-01-01 00:00:00'")
        assert watching.look() == []
        assert watching.look() == []
    assert not any("c_date_changed" in statement for statement, _ in seen)


def test_a_stamp_that_is_written_before_its_row(schedules: str) -> None:
    """django-celery-beat stamps before it saves, in two transactions: the row is found without waiting for seconds."""
    row = every()
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    watching.load()
    sql(schedules, "UPDATE django_celery_beat_periodictasks SET last_update = '2026-01-01 00:00:00'")
    clock.at += 0.5
    assert watching.look() == []
    sql(schedules, f"UPDATE django_celery_beat_periodictask SET args = '[7]' WHERE id = {row.pk}")
    clock.at += 0.5
    assert only(watching.look()).args == (7,)


def test_what_beat_writes_itself_is_no_change(schedules: str) -> None:
    """``last_run_at`` and the count change with each run: nothing is read for that."""
    every()
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    watching.load()
    sql(
        schedules,
        "UPDATE django_celery_beat_periodictask SET last_run_at = '2026-06-09 12:00:00', total_run_count = 7, "
        "date_changed = '2026-06-09 12:00:00'",
    )
    clock.at += 60
    with statements(schedules) as seen:
        assert watching.look() == []
    assert not any("c_date_changed" in statement for statement, _ in seen)


def test_an_edit_in_the_midst_of_reading(schedules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed between two statements of one read is found by the next look: nothing falls in between."""
    every()
    change = "UPDATE django_celery_beat_periodictask SET args = '[{}]'"
    all_, bucket = Rows.all, Rows.bucket

    def then_edited(read: Any, value: int) -> Any:
        def reads(*args: Any) -> Any:
            found = read(*args)
            sql(schedules, change.format(value))
            return found

        return reads

    clock = Clock(time.time())
    watching = reader(schedules, clock)
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "all", then_edited(all_, 1))
        assert only(watching.load()).args == ()
    clock.at += 10
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "bucket", then_edited(bucket, 2))
        assert only(watching.look()).args == (1,)
    clock.at += 10
    assert only(watching.look()).args == (2,)


def test_names_that_change_places(schedules: str) -> None:
    """Two tasks swap their names, and a third one takes the name of a deleted one: each name has its own row."""
    for name in ("one", "two", "three"):
        every(name=name, args=f'["{name}"]')
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    watching.load()
    for old, new in (("one", "x"), ("two", "one"), ("x", "two")):
        sql(schedules, f"UPDATE django_celery_beat_periodictask SET name = '{new}' WHERE name = '{old}'")
    sql(schedules, "DELETE FROM django_celery_beat_periodictask WHERE name = 'three'")
    clock.at += 10
    known: dict[str, Any] = {"one": None, "two": None, "three": None}
    for change in watching.look():
        known[change.name] = change.args if isinstance(change, Schedule) else None
    assert known == {"one": ("two",), "two": ("one",), "three": None}


def test_the_buckets_follow_the_number_of_rows(schedules: str) -> None:
    """A hundred times as many rows later, one edit still reads few of them; and none is lost on the way."""
    many(50)
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    watching.load()
    timing = IntervalSchedule.objects.create(every=7, period="days")
    later = [PeriodicTask(name=f"later {number}", task="shop.note", interval=timing) for number in range(2500)]
    elsewhere(lambda: PeriodicTask.objects.bulk_create(later, batch_size=500))
    clock.at += 10
    assert len(watching.look()) == 2500
    clock.at += 10
    assert watching.look() == []
    sql(schedules, "UPDATE django_celery_beat_periodictask SET args = '[7]' WHERE name = 'later 1000'")
    clock.at += 10
    with statements(schedules) as seen:
        assert only(watching.look()).name == "later 1000"
    assert max(rows for statement, rows in seen if "c_date_changed" in statement) < 120
    sql(schedules, "DELETE FROM django_celery_beat_periodictask WHERE name LIKE 'later%'")
    clock.at += 10
    assert len(watching.look()) == 2500


# --- where an edited schedule starts ---------------------------------------------------------------------------------


def _edited(schedules: str, edit: Callable[[Any], Any], **columns: Any) -> tuple[Schedule, float]:
    row = task(crontab=crontab("0", "2", "UTC"), last_run_at=datetime.now(UTC) - timedelta(days=10), **columns)
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    watching.load()
    last = clock.at
    elsewhere(lambda: edit(row))
    clock.at += 10
    return only(watching.look()), last


def test_a_schedule_that_is_timed_anew(schedules: str) -> None:
    """Nothing of the ten days since its last run is made up for: it starts where it was edited."""
    found, last = _edited(schedules, lambda row: CrontabSchedule.objects.update(minute="30"))
    assert found.not_before == last


def test_a_schedule_whose_arguments_are_edited(schedules: str) -> None:
    """It goes on as it was: no slot that is due is dropped."""
    found, _ = _edited(schedules, lambda row: PeriodicTask.objects.update(args="[7]"))
    assert (found.not_before, found.args) == (None, (7,))


def test_a_schedule_whose_arguments_are_edited_before_its_first_run(schedules: str) -> None:
    """Saved in the admin, which dates the row: it starts where it did, so an interval is not put off by each edit."""
    row = every(3600)
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    started = only(watching.load()).not_before
    for number in range(3):
        row.args = f"[{number}]"
        elsewhere(row.save)
        clock.at = time.time() + 10 * (number + 1)
        found = only(watching.look())
        assert (found.args, found.not_before) == ((number,), started)


def test_a_schedule_that_is_switched_on_past_the_model(schedules: str) -> None:
    """``update(enabled=True)`` leaves the old last run and the old date: it starts where it was not there yet."""

    def switch(row: Any) -> None:
        PeriodicTask.objects.update(enabled=True)

    row = every(name="invoices", enabled=False)
    PeriodicTask.objects.update(last_run_at=datetime.now(UTC) - timedelta(days=10))
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    assert watching.load() == []
    last = clock.at
    elsewhere(lambda: switch(row))
    clock.at += 10
    assert only(watching.look()).not_before == last


def test_a_look_at_a_quiet_table_is_as_good_as_reading_it(schedules: str) -> None:
    """A schedule that is switched on after hours without a change starts now, and not where it was last read."""
    row = every(name="invoices", enabled=False)
    PeriodicTask.objects.update(last_run_at=datetime.now(UTC) - timedelta(days=10))
    clock = Clock(time.time())
    watching = reader(schedules, clock)
    assert watching.load() == []
    clock.at += 7200
    assert watching.look() == []
    quiet = clock.at
    elsewhere(lambda: PeriodicTask.objects.filter(pk=row.pk).update(enabled=True))
    clock.at += 10
    assert only(watching.look()).not_before == quiet


# --- the thread ---------------------------------------------------------------------------------------------------


def test_the_leader_alone_watches(schedules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat that stands by reads nothing, holds no connection, and has no changes to tell."""
    every()
    closed = threading.Event()
    close = DatabaseSource._disconnect
    monkeypatch.setattr(DatabaseSource, "_disconnect", lambda self: (close(self), closed.set()))
    source = DatabaseSource(Celery("shop", set_as_current=False), defaults=Policy())
    source.open(lambda: None)
    try:
        source.lead(True)
        assert {one.name for one in source.load()} == {"invoices", "celery.backend_cleanup"}
        source.lead(False)
        assert closed.wait(SEEN)
        PeriodicTask.objects.update(args="[7]")
        assert source.changes() == []
        assert source._reader.loaded is False
    finally:
        source.close()


def test_the_tables_are_read_once_at_the_start(schedules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late after the lead the schedules are asked for: ten thousand rows are not read for nothing."""
    every()
    loads, turns = [], []
    load, turn = Reader.load, DatabaseSource._turn
    monkeypatch.setattr(Reader, "load", lambda self: (loads.append(1), load(self))[1])
    monkeypatch.setattr(DatabaseSource, "_turn", lambda self: (turns.append(self._leading), turn(self))[1])
    source = DatabaseSource(Celery("shop", set_as_current=False), defaults=Policy())
    source.open(lambda: None)
    try:
        source.lead(True)
        until(lambda: turns.count(True) >= 2, within=SEEN, what="the thread to have turned")
        assert len(source.load()) == 2
        so_far = len(turns)
        until(lambda: len(turns) >= so_far + 2, within=SEEN, what="the thread to have turned again")
        assert loads == [1]
    finally:
        source.close()


def test_the_beat_is_woken(schedules: str) -> None:
    """It need not ask all the time."""
    row = every()
    woken = threading.Event()
    source = DatabaseSource(Celery("shop", set_as_current=False), defaults=Policy())
    source.open(woken.set)
    try:
        source.lead(True)
        source.load()
        woken.clear()
        row.args = "[7]"
        row.save()
        assert woken.wait(SEEN)
        assert "invoices" in {change.name for change in source.changes()}
    finally:
        source.close()


def test_a_look_from_the_command_line(schedules: str) -> None:
    """Without a thread: it reads, and writes nothing, not even the entries of the configuration."""
    app = Celery("shop", set_as_current=False)
    app.conf.beat_schedule = {"nightly": {"task": "shop.note", "schedule": 60.0}}
    every()
    with statements(schedules) as seen:
        assert [one.name for one in DatabaseSource(app, defaults=Policy()).load()] == ["invoices"]
    assert all(statement.startswith(("SELECT", "PRAGMA")) for statement, _ in seen)


@pytest.mark.parametrize("schedules", ["postgres"], indirect=True)
def test_an_uncommitted_edit_is_none(source: DatabaseSource, schedules: str) -> None:
    """What is rolled back never was; what is committed is seen."""
    row = every()
    source.load()
    with transaction.atomic(using=schedules):
        PeriodicTask.objects.filter(pk=row.pk).update(args="[1]")
        time_was = source._reader._compared
        until(lambda: source._reader._compared > time_was, within=SEEN, what="a comparison")
        assert source.changes() == []
        transaction.set_rollback(True, using=schedules)
    PeriodicTask.objects.filter(pk=row.pk).update(args="[2]")
    assert only(seen(source)).args == (2,)
