"""The collector on a real Redis and a real database: whatever is away or dies, each slot is copied once."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from django.db import DatabaseError, connections
from redis import Redis

from celery_hardened import Hardening, harden
from celery_hardened.beat.names import Keys, task_id_of
from celery_hardened.beat.run_store import RunStore
from celery_hardened.contrib.django.models import ScheduleRun
from celery_hardened.contrib.django.runs.collector import Collector, History
from celery_hardened.contrib.django.runs.copying import Copying
from celery_hardened.contrib.django.runs.prune import prune
from celery_hardened.contrib.django.runs.source import RecordedSource
from celery_hardened.contrib.django.scheduler import DatabaseScheduler
from celery_hardened.signals import schedule_missed
from tests.fixtures.servers import Postgres
from tests.support.django_runs import line, report, runs, told
from tests.support.django_schedules import every
from tests.support.led_beat import LedBeats
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

#: A slot of just now: what is too old is not copied.
SLOT = float(round(time.time()) - 600)


class Told:
    """What beats and workers have told, as they tell it."""

    def __init__(self, url: str, prefix: str) -> None:
        self.redis: Any = Redis.from_url(url)
        self.keys = Keys(prefix)
        self.store = RunStore(self.redis, self.keys)

    def line(self, *args: Any, schedule: str = "nightly", **more: Any) -> None:
        said = {"slot": SLOT, **more} if not args[1:] else more
        self.redis.lpush(self.keys.history(schedule), line(*args, schedule=schedule, **said))
        self.redis.hset(self.keys.records, schedule, "{}")

    def slots(self, numbers: Any, schedule: str = "nightly") -> None:
        for number in numbers:
            self.line("fired", SLOT + number, schedule=schedule)

    def end(self, number: int = 0, outcome: str = "success", schedule: str = "nightly", **more: Any) -> None:
        self.store.report([report(outcome, SLOT + number, schedule=schedule, **more)])

    def waiting(self) -> int:
        return int(self.redis.xlen(self.keys.runs))


@pytest.fixture
def hardening(redis_hardening: Hardening) -> Hardening:
    return redis_hardening


@pytest.fixture
def say(hardening: Hardening, records_url: str) -> Iterator[Told]:
    made = Told(records_url, hardening.prefix)
    yield made
    made.redis.close()


@pytest.fixture
def lead(hardening: Hardening, schedules: str) -> Iterator[Callable[[], Collector]]:
    """A collector whose beat leads."""
    made: list[Collector] = []

    def leads() -> Collector:
        made.append(Collector(hardening, every=0.05))
        made[-1].open()
        made[-1].lead(True)
        return made[-1]

    yield leads
    for one in made:
        one.close()


def history(hardening: Hardening, alias: str) -> History:
    """One pass at a time."""
    return History(hardening, hardening.redis, alias, goes_on=lambda: True)


def wait_for(alias: str, count: int, **only: Any) -> None:
    until(lambda: len(runs(alias, **only)) >= count, within=30, what=f"{count} rows")


# --- what a beat that leads copies ------------------------------------------------------------------------------------


def test_a_beat_that_begins_to_lead_copies_what_is_there(
    say: Told, lead: Callable[[], Collector], schedules: str
) -> None:
    """Histories and ends from before it led, of whichever beat; and then what moves."""
    say.slots(range(5))
    say.slots(range(5), schedule="other")
    say.end(2)
    collector = lead()
    wait_for(schedules, 10)
    wait_for(schedules, 1, outcome="success")
    say.slots([7])
    collector.moved("nightly")
    wait_for(schedules, 11)


def test_a_beat_that_died_before_it_copied(
    hardening: Hardening, records_url: str, say: Told, lead: Callable[[], Collector], schedules: str
) -> None:
    """Its steps are in Redis: the next leader copies them, each slot once, and what became of those not fired."""
    beats = LedBeats(
        records_url,
        "q-runs",
        {"often": {"schedule": 60.0}, "rare": {"schedule": 60.0, "missed_run": "skip", "grace": 5.0}},
        records_url=records_url,
        hardened_key_prefix=hardening.settings.key_prefix,
        hardened_run_history_max_age=1e10,
    )
    try:
        for second in (60, 120, 180, 900):
            beats.clock.at += second
            beats.turn()
        beats.next_leader()  # nobody has copied anything by now
        hardening.__dict__["settings"] = beats.hardening.settings
        lead()
        wait_for(schedules, 5)
        assert {row.verdict for row in runs(schedules)} >= {"fired", "skipped"}
        skipped = runs(schedules, verdict="skipped")
        assert all(row.count >= 1 and row.first is not None for row in skipped)
        for row in runs(schedules, verdict="fired"):
            assert row.task_id == task_id_of(row.schedule, row.slot.timestamp())
    finally:
        beats.close()


def test_a_run_by_hand_of_a_schedule_that_no_beat_knows(
    hardening: Hardening, say: Told, schedules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no record and moved nothing: its history is looked at because its row is there."""
    every(name="disabled", enabled=False)
    say.redis.lpush(say.keys.history("disabled"), line("triggered", SLOT, id="a", by="ada"))
    one = history(hardening, schedules)
    one.turn()
    assert [(row.schedule, row.kind, row.by) for row in runs(schedules)] == [("disabled", "triggered", "ada")]
    say.redis.lpush(say.keys.history("disabled"), line("triggered", SLOT + 1, id="b", by="ada"))
    monkeypatch.setattr("celery_hardened.contrib.django.runs.collector.ROUND", 0.5)
    until(lambda: one.turn() or len(runs(schedules)) == 2, within=30, what="the second run")


def test_its_end_tells_of_a_run_that_woke_nobody(hardening: Hardening, say: Told, schedules: str) -> None:
    """The history of the schedule is read with the report of a worker."""
    one = history(hardening, schedules)
    one.turn()
    say.line("triggered", SLOT, id="by-hand", by="ada")
    say.end(task_id="by-hand")
    one.turn()
    assert [(row.kind, row.by, row.outcome) for row in runs(schedules)] == [("triggered", "ada", "success")]
    assert say.waiting() == 0


def test_what_does_not_move_costs_no_statement(hardening: Hardening, say: Told, schedules: str) -> None:
    """A pass over schedules of which nothing is new asks the database nothing, however many there are."""
    for number in range(50):
        say.slots(range(3), schedule=f"s {number}")
    one = history(hardening, schedules)
    one.turn()
    assert len(runs(schedules)) == 150
    seen: list[str] = []

    def note(execute: Any, statement: str, *more: Any) -> Any:
        seen.append(statement)
        return execute(statement, *more)

    one._round, one._round_began = iter([[f"s {number}" for number in range(50)]]), time.monotonic()
    with connections[schedules].execute_wrapper(note):
        one.turn()
    assert seen == []


def test_a_next_leader_reads_only_what_is_new(
    hardening: Hardening, say: Told, schedules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history whose newest line is in the table is not read again."""
    say.slots(range(20))
    say.slots(range(20), schedule="other")
    history(hardening, schedules).turn()
    say.slots([30])
    asked: list[str] = []
    read = RunStore.histories

    def noted(self: RunStore, names: Any, most: int) -> Any:
        asked.extend(names)
        return read(self, names, most)

    monkeypatch.setattr(RunStore, "histories", noted)
    history(hardening, schedules).turn()
    assert asked == ["nightly"]
    assert len(runs(schedules)) == 41


def test_a_next_leader_brings_back_nothing_that_was_pruned(hardening: Hardening, say: Told, schedules: str) -> None:
    """The histories of what runs rarely outlive its rows; what nobody has copied yet is copied all the same."""
    hardening.__dict__["settings"] = replace(hardening.settings, run_history_max_count=10)
    for number in range(10):
        say.line("fired", SLOT - 300 + number, at=SLOT - 300 + number, schedule="rare")
        say.line("fired", SLOT + number, at=SLOT + number)
    history(hardening, schedules).turn()
    assert len(runs(schedules)) == 20
    prune(max_age=1e6, max_count=10)
    say.line("fired", SLOT + 20, at=SLOT + 20)
    history(hardening, schedules).turn()
    assert {row.schedule for row in runs(schedules)} == {"nightly"}
    assert len(runs(schedules)) == 11


def test_a_line_and_a_report_that_nobody_can_read(hardening: Hardening, say: Told, schedules: str) -> None:
    """They hold up nothing, and are not read again and again."""
    say.slots(range(2))
    say.redis.lpush(say.keys.history("nightly"), b"\xff nonsense", b"[]")
    say.redis.set(say.keys.history("wrong type"), "x")
    say.redis.hset(say.keys.records, "wrong type", "{}")
    say.redis.xadd(say.keys.runs, {b"r": b"nonsense"})
    say.redis.xadd(say.keys.runs, {b"other": b"x"})
    say.end(0)
    history(hardening, schedules).turn()
    assert told(schedules) == [("nightly", "fired", "success", 1), ("nightly", "fired", "", 0)]
    assert say.waiting() == 0


# --- stores that are away ------------------------------------------------------------------------------------


def test_a_database_that_is_away(
    say: Told,
    lead: Callable[[], Collector],
    schedules: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What moves and ends meanwhile is copied when it is back, each once; it is said once, and that it is over."""
    monkeypatch.setattr("celery_hardened.contrib.django.runs.collector._PATIENCE", 0.1)
    monkeypatch.setattr("celery_hardened.contrib.django.runs.collector.ROUND", 1e9)
    away = threading.Event()
    refused: list[set[str]] = []
    copy = Copying.copy

    def refuse(self: Copying, *args: Any, **options: Any) -> None:
        if away.is_set():
            refused.append(set(args[0]))
            raise DatabaseError("the server is starting up")
        copy(self, *args, **options)

    monkeypatch.setattr(Copying, "copy", refuse)
    say.slots([0])
    collector = lead()
    wait_for(schedules, 1)
    with caplog.at_level(logging.INFO, logger="celery_hardened.beat"):
        away.set()
        say.end(0)
        until(lambda: "is not copied" in caplog.text, within=30, what="a word")
        assert say.waiting() == 1, "a report is removed once it is in the table"
        say.slots(range(1, 40), schedule="other")
        collector.moved("other")
        until(lambda: {"other"} in refused, within=30, what="the copy to be tried")
        away.clear()
        wait_for(schedules, 40)
        wait_for(schedules, 1, outcome="success")
    until(lambda: say.waiting() == 0, within=30, what="the report to be removed")
    assert sum("is not copied" in one.message for one in caplog.records) == 1
    assert len(runs(schedules)) == 40


@pytest.mark.parametrize("schedules", ["postgres"], indirect=True)
def test_a_server_that_is_stopped_and_started(
    say: Told, lead: Callable[[], Collector], schedules: str, postgres: Postgres
) -> None:
    """A real one: nothing is lost, and nothing is there twice."""
    say.slots(range(5))
    collector = lead()
    wait_for(schedules, 5)
    connections[schedules].close()
    postgres.stop()
    try:
        say.slots(range(5, 20))
        say.end(7)
        collector.moved("nightly")
        until(lambda: collector._said is not None, within=60, what="the copy to fail")
    finally:
        postgres.start()
    wait_for(schedules, 20)
    wait_for(schedules, 1, outcome="success")
    assert len(runs(schedules)) == 20


def test_a_redis_that_is_silent(
    say: Told, records_url: str, unique: str, schedules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main loop's calls come back at once, and the copy goes on when it answers."""
    monkeypatch.setattr("celery_hardened.contrib.django.runs.collector._ANSWER", 0.3)
    monkeypatch.setattr("celery_hardened.contrib.django.runs.collector._PATIENCE", 0.1)
    proxy = TcpProxy(int(records_url.rpartition(":")[2].partition("/")[0]))
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(
        hardened_redis_url=f"redis://127.0.0.1:{proxy.port}/{records_url.rpartition('/')[2]}",
        hardened_key_prefix=f"t-{unique}",
    )
    harden(app)
    collector = Collector(Hardening.expect(app), every=0.05)
    collector.open()
    try:
        say.slots([0])
        collector.lead(True)
        wait_for(schedules, 1)
        proxy.silence()
        until(lambda: collector._said is not None, within=30, what="the copy to fail")
        began = time.monotonic()
        for number in range(1000):
            collector.moved(f"s {number}")
        assert time.monotonic() - began < 30, "to wait for Redis each time takes minutes"
        say.slots([1])
        collector.moved("nightly")
        proxy.heal()
        wait_for(schedules, 2)
    finally:
        collector.close()
        proxy.stop()
        Hardening.expect(app).redis.close()


def test_a_beat_that_ends_while_a_statement_hangs(
    say: Told, lead: Callable[[], Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends all the same, some seconds later at most."""
    monkeypatch.setattr("celery_hardened.contrib.django.runs.collector.CLOSE", 0.2)
    hangs, go_on = threading.Event(), threading.Event()

    def hang(self: Copying, *args: Any, **options: Any) -> None:
        hangs.set()
        go_on.wait(60)

    monkeypatch.setattr(Copying, "copy", hang)
    say.slots([0])
    collector = lead()
    thread = collector._thread
    try:
        assert hangs.wait(30)
        began = time.monotonic()
        collector.close()
        assert time.monotonic() - began < 30, "it hangs for a minute"
    finally:
        go_on.set()
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


# --- leads that change ------------------------------------------------------------------------------------


def test_a_beat_that_stands_by_copies_nothing_and_holds_no_connection(
    hardening: Hardening, say: Told, schedules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins when it leads, and lets go when it does not any more."""
    turned: list[int] = []
    turn = History.turn

    def noted(self: History, moved: Any = ()) -> None:
        turned.append(1)
        turn(self, moved)

    monkeypatch.setattr(History, "turn", noted)
    collector = Collector(hardening, every=0.05)
    closed = threading.Event()
    disconnect = collector._disconnect

    def disconnected() -> None:
        disconnect()
        closed.set()

    monkeypatch.setattr(collector, "_disconnect", disconnected)
    say.slots([0])
    collector.open()
    try:
        collector.lead(False)
        assert turned == []
        collector.lead(True)
        wait_for(schedules, 1)
        collector.lead(False)
        assert closed.wait(30)
    finally:
        collector.close()


def test_two_collectors_at_once(say: Told, lead: Callable[[], Collector], schedules: str) -> None:
    """A beat that does not know yet that another one leads: no row twice, no end lost."""
    say.slots(range(30))
    first, second = lead(), lead()
    for number in range(30, 50):
        say.slots([number])
        say.end(number)
        for one in (first, second):
            one.moved("nightly")
    wait_for(schedules, 20, outcome="success")
    assert len(runs(schedules)) == 50
    until(lambda: say.waiting() == 0, within=30, what="the reports to be removed")


# --- how a beat comes to have one ------------------------------------------------------------------------------------


def test_a_scheduler_of_these_tables_keeps_history(hardening: Hardening, schedules: str) -> None:
    """By default; not with ``hardened_run_history = False``. What fires and what is passed over wake it."""
    source: Any = DatabaseScheduler(hardening.app, lazy=True).source()
    assert isinstance(source, RecordedSource)
    source._collector.open = source._collector.close = lambda: None
    source.open(lambda: None)
    try:
        schedule_missed.send(hardening.app, schedule="late", slot=SLOT, count=1, reason="expired")
        schedule_missed.send("another app", schedule="other", slot=SLOT, count=1, reason="expired")
        assert source._collector._moved == {"late"}
    finally:
        source.close()
    schedule_missed.send(hardening.app, schedule="closed", slot=SLOT, count=1, reason="expired")
    assert source._collector._moved == {"late"}

    off = Celery("off", broker="memory://", set_as_current=False)
    off.conf.update(hardened_redis_url=hardening.settings.redis_url, hardened_run_history=False)
    harden(off)
    assert not isinstance(DatabaseScheduler(off, lazy=True).source(), RecordedSource)


def test_reports_are_bounded(say: Told) -> None:
    """Nobody reads them: the oldest go, and all of them after a week."""
    for _ in range(60):
        say.store.report([report(slot=SLOT)] * 200)
    assert 10_000 <= say.waiting() <= 10_200
    assert 6 * 86_400 < say.redis.ttl(say.keys.runs) <= 7 * 86_400


def test_the_model_is_nobodys_to_edit() -> None:
    """There is a permission to look at rows, and none to add, change or delete them."""
    assert ScheduleRun._meta.default_permissions == ("view",)
    assert json.loads(report().text())["schedule"] == "nightly"
