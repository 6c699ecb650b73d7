"""What beat writes into the tables, and that it never writes over what somebody else wrote."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from celery import Celery
from django.db import DatabaseError, OperationalError, connections, transaction
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, PeriodicTask, PeriodicTasks

from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Schedule
from celery_hardened.contrib.django.schedules.reader import Reader
from celery_hardened.contrib.django.schedules.source import DatabaseSource
from celery_hardened.contrib.django.schedules.writer import Writer
from tests.support import django_project
from tests.support.django_schedules import Clock, crontab, elsewhere, every, many, only, reader, sql, statements, task
from tests.support.postgres import Postgres
from tests.support.until import until

pytestmark = pytest.mark.usefixtures("patient_source")

UTC = timezone.utc
NOON = datetime(2026, 6, 9, 12, tzinfo=UTC)
AT = NOON.timestamp()


@pytest.fixture
def source(schedules: str) -> Iterator[DatabaseSource]:
    """The source of a beat that leads."""
    app = Celery("shop", set_as_current=False)
    app.conf.result_expires = None
    made = DatabaseSource(app, defaults=Policy())
    made.open(lambda: None)
    made.lead(True)
    yield made
    made.close()


def beat(alias: str) -> tuple[Reader, Writer, list[Schedule]]:
    """A reader that has read, its writer, and the schedules."""
    made = reader(alias, Clock(time.time()))
    found = [one for one in made.load() if isinstance(one, Schedule)]
    return made, Writer(made), found


def row(name: str = "invoices") -> Any:
    return PeriodicTask.objects.get(name=name)


def test_the_last_run_and_the_count(source: DatabaseSource) -> None:
    """Written within a second or so of the run, coalesced; neither the date of the last edit nor the stamp moves."""
    every(total_run_count=4)
    before, stamp = row(), PeriodicTasks.last_change()
    schedule = only(source.load())
    for offset in (0, 60, 120):
        source.fired(schedule, at=AT + offset)
    until(lambda: row().total_run_count == 7, within=30, what="the runs to be written")
    assert row().last_run_at == NOON + timedelta(seconds=120)
    assert (row().date_changed, PeriodicTasks.last_change()) == (before.date_changed, stamp)


def test_a_kill_loses_little(source: DatabaseSource, schedules: str) -> None:
    """What was fired is in the database soon, not after minutes, and at the end of the process at once."""
    every()
    source.fired(only(source.load()), at=AT)
    source.close()
    assert row().last_run_at == NOON


def test_a_thousand_runs_are_few_statements(schedules: str) -> None:
    """Bulk by primary key: not one statement, let alone four, for each row."""
    many(1000)
    _, writer, found = beat(schedules)
    for schedule in found:
        writer.note(schedule, AT)
    with statements(schedules) as seen:
        writer.write()
    assert len(seen) <= 12
    assert PeriodicTask.objects.filter(last_run_at=NOON, total_run_count=1).count() == 1000
    assert len(writer) == 0


def test_only_its_own_columns(schedules: str) -> None:
    """An edit in the admin between the run and the write stays as it was made: nothing else of the row is written."""
    every(args="[1]")
    _, writer, (schedule,) = beat(schedules)
    writer.note(schedule, AT)
    edited = row()
    edited.args, edited.queue, edited.description = "[2]", "slow", "by hand"
    edited.save()
    writer.write()
    kept = row()
    assert (kept.args, kept.queue, kept.description, kept.enabled) == ("[2]", "slow", "by hand", True)
    assert (kept.last_run_at, kept.date_changed) == (NOON, edited.date_changed)


def test_a_row_that_was_switched_off_meanwhile(schedules: str) -> None:
    """It stays off."""
    every()
    _, writer, (schedule,) = beat(schedules)
    writer.note(schedule, AT)
    edited = row()
    edited.enabled = False
    edited.save()
    writer.write()
    assert row().enabled is False


def test_a_slow_leader_does_not_undo_the_next_one(schedules: str) -> None:
    """A run of before is written after one of later: the later one stays."""
    every()
    _, writer, (schedule,) = beat(schedules)
    PeriodicTask.objects.update(last_run_at=NOON + timedelta(hours=1))
    writer.note(schedule, AT)
    writer.write()
    assert (row().last_run_at, row().total_run_count) == (NOON + timedelta(hours=1), 1)


def test_a_deleted_row(schedules: str) -> None:
    """Its note is dropped, and the others are written."""
    every(name="gone")
    every()
    _, writer, found = beat(schedules)
    for schedule in found:
        writer.note(schedule, AT)
    PeriodicTask.objects.filter(name="gone").delete()
    writer.write()
    assert (len(writer), row().last_run_at) == (0, NOON)


@pytest.mark.parametrize("schedules", ["postgres"], indirect=True)
def test_a_row_that_somebody_holds_locked(schedules: str) -> None:
    """It is not waited for: the others are written, and it is when it is free."""
    every(name="held")
    every()
    _, writer, found = beat(schedules)
    for schedule in found:
        writer.note(schedule, AT)
    settings = connections[schedules].settings_dict
    with psycopg.connect(host=settings["HOST"], port=settings["PORT"], user="test", dbname=settings["NAME"]) as other:
        other.execute("SELECT * FROM django_celery_beat_periodictask WHERE name = 'held' FOR UPDATE")
        writer.write()
        assert (row().last_run_at, row("held").last_run_at, len(writer)) == (NOON, None, 1)
    writer.write()
    assert (row("held").last_run_at, len(writer)) == (NOON, 0)


# --- one-offs ------------------------------------------------------------------------------------------------------


def one_off(**columns: Any) -> Any:
    return task(crontab=crontab(), one_off=True, **columns)


def test_a_one_off_is_switched_off(schedules: str) -> None:
    """Once fired it is off, its count begins anew as with django-celery-beat, and it is gone from the schedules."""
    one_off()
    one_off(name="other")
    watching, writer, found = beat(schedules)
    writer.note(next(one for one in found if one.name == "invoices"), AT)
    writer.write()
    assert (row().enabled, row().last_run_at, row().total_run_count) == (False, NOON, 0)
    assert row("other").enabled is True
    assert [change.name for change in watching.look()] == ["invoices"]


def test_two_one_offs_of_one_clocked_time(schedules: str) -> None:
    """Each is switched off by itself: one of them does not take the other with it."""
    clock = ClockedSchedule.objects.create(clocked_time=NOON)
    for name in ("one", "two"):
        task(name, clocked=clock, one_off=True)
    _, writer, found = beat(schedules)
    writer.note(next(one for one in found if one.name == "one"), AT)
    writer.write()
    assert (row("one").enabled, row("two").enabled) == (False, True)


Edit = Callable[[], Any]
RETIMED: list[tuple[str, Edit]] = [
    ("start", lambda: PeriodicTask.objects.update(start_time=NOON + timedelta(days=1))),
    ("other crontab", lambda: PeriodicTask.objects.update(crontab=crontab("5", "5"))),
]


@pytest.mark.parametrize("edit", [case[1] for case in RETIMED], ids=[case[0] for case in RETIMED])
def test_a_one_off_that_is_timed_anew_as_it_runs(schedules: str, edit: Edit) -> None:
    """Somebody has given it another time after it ran and before beat wrote that: it stays on, and runs again."""
    one_off()
    watching, writer, (schedule,) = beat(schedules)
    elsewhere(edit)
    writer.note(schedule, AT)
    writer.write()
    assert row().enabled is True
    watching._monotonic.at += 10  # type: ignore[attr-defined]
    again = only(watching.look())
    assert again.mark != schedule.mark
    writer.write()
    kept = row()
    # A count would say that it has run, under its new time too.
    assert (kept.enabled, kept.last_run_at, kept.total_run_count, len(writer)) == (True, NOON, 0, 0)


def test_a_one_off_whose_arguments_are_edited_as_it_runs(schedules: str) -> None:
    """The edit stays, and once beat has read it, the row is switched off: its one run is over."""
    one_off()
    watching, writer, (schedule,) = beat(schedules)
    elsewhere(lambda: PeriodicTask.objects.update(args="[2]"))
    writer.note(schedule, AT)
    writer.write()
    assert (row().enabled, row().args, len(writer)) == (True, "[2]", 1)
    watching.look()
    writer.write()
    assert (row().enabled, row().args, len(writer)) == (False, "[2]", 0)


def test_a_one_off_that_is_deleted_as_it_runs(schedules: str) -> None:
    """Nothing is left of it, not even the note."""
    one_off()
    watching, writer, (schedule,) = beat(schedules)
    elsewhere(lambda: PeriodicTask.objects.all().delete())
    writer.note(schedule, AT)
    writer.write()
    watching.look()
    writer.write()
    assert len(writer) == 0


# --- a database that is away ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedules", ["postgres"], indirect=True)
def test_connections_that_are_cut(source: DatabaseSource, schedules: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing ends, each run is written once, edits are seen again; it is said at most once a cut."""
    every()
    schedule = only(source.load())
    with caplog.at_level(logging.INFO, logger="celery_hardened.beat"):
        for cut in range(1, 4):
            sql(
                schedules,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{connections[schedules].settings_dict['NAME']}' AND pid <> pg_backend_pid()",
            )
            connections[schedules].close()
            source.fired(schedule, at=AT + cut)
            until(lambda cut=cut: row().total_run_count == cut, within=30, what="the run to be written")  # type: ignore[misc]
    PeriodicTask.objects.update(args="[7]")
    found: list[Any] = []
    until(lambda: found.extend(source.changes()) or found, within=25, what="the edit to be seen")
    assert only(found).args == (7,)
    assert sum("cannot be read or written" in record.message for record in caplog.records) <= 3


@pytest.mark.parametrize("schedules", ["postgres"], indirect=True)
def test_a_server_that_is_away(
    source: DatabaseSource, schedules: str, own_postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped and started again: runs are kept meanwhile and written then; it is said once, and that it is over."""
    every()
    schedule = only(source.load())
    django_project.close_all()
    with caplog.at_level(logging.INFO, logger="celery_hardened.beat"):
        own_postgres.stop()
        for second in range(3):
            source.fired(schedule, at=AT + second)
        until(lambda: any("cannot be read" in record.message for record in caplog.records), within=30, what="a word")
        assert source.changes() == []
        own_postgres.start()
        until(lambda: row().total_run_count == 3, within=60, what="the runs to be written")
    said = [record.message for record in caplog.records]
    assert sum("cannot be read" in one for one in said) == 1
    assert sum("answers again" in one for one in said) == 1


@pytest.fixture
def own_postgres(postgres: Postgres) -> Iterator[Postgres]:
    """The server of all tests, up again at the end."""
    yield postgres
    if not postgres.process.running:
        postgres.start()


def test_a_statement_that_hangs(schedules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main loop is not held up by it: noting a run, asking for changes and closing come back."""
    every()
    hangs, go_on = threading.Event(), threading.Event()
    look = Reader.look

    def hang(self: Reader) -> Any:
        hangs.set()
        go_on.wait(60)
        return look(self)

    monkeypatch.setattr(Reader, "look", hang)
    monkeypatch.setattr("celery_hardened.contrib.django.schedules.source.CLOSE", 0.2)
    source = DatabaseSource(Celery("shop", set_as_current=False), defaults=Policy())
    source.open(lambda: None)
    try:
        source.lead(True)
        schedule = next(one for one in source.load() if isinstance(one, Schedule))
        assert hangs.wait(30)
        began = time.monotonic()
        for _ in range(1000):
            source.fired(schedule, at=AT)
            source.changes()
        thread = source._thread
        source.close()
        assert time.monotonic() - began < 30, "it would hang for a minute"
    finally:
        go_on.set()
    assert thread is not None
    thread.join(30)
    assert row(schedule.name).total_run_count == 1000


def test_a_database_that_is_away_at_the_start(
    schedules: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A beat that begins to lead waits some seconds at most; its schedules come as changes when they can be read."""
    every()
    away = threading.Event()
    away.set()
    load = Reader.load

    def refuse(self: Reader) -> Any:
        if away.is_set():
            raise OperationalError("connection refused")
        return load(self)

    monkeypatch.setattr(Reader, "load", refuse)
    monkeypatch.setattr("celery_hardened.contrib.django.schedules.source.LOAD", 0.2)
    app = Celery("shop", set_as_current=False)
    app.conf.result_expires = None
    source = DatabaseSource(app, defaults=Policy())
    source.open(lambda: None)
    try:
        source.lead(True)
        assert list(source.load()) == []
        away.clear()
        found: list[Any] = []
        until(lambda: found.extend(source.changes()) or found, within=20, what="the schedules")
        assert only(found).name == "invoices"
    finally:
        source.close()


def test_what_is_kept_while_it_is_away_is_bounded(schedules: str) -> None:
    """One note a row, however many runs: the count is right when they are written at last."""
    every()
    _, writer, (schedule,) = beat(schedules)
    with pytest.raises(DatabaseError), transaction.atomic(using=schedules):
        sql_error(schedules)
    for number in range(10_000):
        writer.note(schedule, AT + number)
    assert len(writer) == 1
    writer.write()
    assert (row().total_run_count, row().last_run_at) == (10_000, NOON + timedelta(seconds=9_999))


def sql_error(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT 1 FROM nothing_of_that_name")


def test_a_write_that_fails_is_kept(schedules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of the failed write and those that came in meanwhile are written with the next one."""
    every()
    _, writer, (schedule,) = beat(schedules)
    writer.note(schedule, AT)

    def fail(self: Writer, pks: list[int], notes: Any) -> list[int]:
        self.note(schedule, AT + 1)
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch, pytest.raises(OperationalError):
        patch.setattr(Writer, "_count", fail)
        writer.write()
    writer.write()
    assert (row().total_run_count, row().last_run_at) == (2, NOON + timedelta(seconds=1))


def test_a_crontab_row_is_never_written(source: DatabaseSource) -> None:
    """Tasks share rows of timings: beat writes to none of them."""
    one_off()
    before = list(CrontabSchedule.objects.values())
    source.fired(only(source.load()), at=AT)
    until(lambda: not row().enabled, within=30, what="the one-off to be switched off")
    assert list(CrontabSchedule.objects.values()) == before
