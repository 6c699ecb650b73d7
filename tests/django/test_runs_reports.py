"""What a worker tells of scheduled tasks: of those alone, without waiting, and within bounds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from django.test import override_settings
from redis import Redis

from celery_hardened import Hardening, StoreUnavailableError, harden
from celery_hardened.beat.names import Keys, task_id_of
from celery_hardened.beat.run_report import RunReport
from celery_hardened.beat.run_store import RunStore
from celery_hardened.errors import ConfigurationError
from celery_hardened.marks import HEADER
from celery_hardened.pipeline import run_reports
from celery_hardened.pipeline.run_reports import RunReports, ended, ended_unread, is_on, reports_of
from celery_hardened.settings import Settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

SLOT = 1_700_000_000.0
TASK_ID = task_id_of("nightly", SLOT)
SCHEDULED = {"v": 1, "schedule": "nightly", "slot": SLOT, "missed": 2, "deaths": 1}


@pytest.fixture
def make(records_url: str, unique: str) -> Iterator[Callable[..., Hardening]]:
    made: list[Hardening] = []

    def hardening(**conf: Any) -> Hardening:
        app = Celery("shop", broker="memory://", set_as_current=False)
        app.conf.update({"hardened_redis_url": records_url, "hardened_key_prefix": f"t-{unique}", **conf})
        harden(app)
        made.append(Hardening.expect(app))
        return made[-1]

    yield hardening
    for one in made:
        reports = one.__dict__.get("run_reports")
        if reports is not None:
            reports.close()
        one.redis.close()


def request(hardening: Hardening, marks: Any = SCHEDULED, **more: Any) -> Any:
    """As much of a ``CountedRequest`` as is looked at."""
    said: dict[str, Any] = {
        "_app": hardening.app,
        "_request_dict": {HEADER: marks, "retries": 1} if marks is not None else {"retries": 0},
        "id": TASK_ID,
        "time_start": SLOT + 1,
        "_hostname": "w1@test",
    }
    return SimpleNamespace(**{**said, **more})


def told(hardening: Hardening, count: int, *, url: str | None = None) -> list[RunReport]:
    """What is in Redis once there are *count*."""
    client: Any = Redis.from_url(url) if url else hardening.redis
    store = RunStore(client, Keys(hardening.prefix))
    until(lambda: len(store.reports(100_000)[0]) >= count, within=30, what=f"{count} reports")
    found = store.reports(100_000)[1]
    if url:
        client.close()
    return found


# --- what is told ------------------------------------------------------------------------------------


def test_the_end_of_a_scheduled_task_is_told(make: Callable[..., Hardening]) -> None:
    """Slot, outcome, times, attempt and worker; of a failure its class and its letter."""
    hardening = make()
    ended(request(hardening), "success", runtime=2.5, error=None, again=None)
    ended(request(hardening), "failure", runtime=1.0, error=ValueError("no"), again=None)
    good, bad = told(hardening, 2)
    assert (good.schedule, good.slot, good.task_id, good.outcome) == ("nightly", SLOT, TASK_ID, "success")
    assert (good.started, good.runtime, good.attempt, good.missed, good.deaths) == (SLOT + 1, 2.5, 2, 2, 1)
    assert (good.worker, good.error, good.letter) == ("w1@test", "", "")
    assert (bad.outcome, bad.error, bad.letter) == ("failure", "ValueError", f"{TASK_ID}-0-1")


@pytest.mark.parametrize(
    ("outcome", "again", "has_letter"),
    [
        ("worker_lost", None, True),
        ("worker_lost", True, False),
        ("worker_lost", False, False),
        ("retry", None, False),
        ("poison", None, True),
        ("revoked", None, False),
    ],
)
def test_whether_there_is_a_letter(
    make: Callable[..., Hardening], outcome: str, again: bool | None, has_letter: bool
) -> None:
    """A process that was lost leaves one only if nothing starts again."""
    hardening = make()
    ended(request(hardening), outcome, runtime=None, error=None, again=again)
    assert bool(told(hardening, 1)[0].letter) is has_letter


def test_the_letter_that_the_error_names(make: Callable[..., Hardening]) -> None:
    """As the pool process has kept it; an empty name says that there is none."""
    hardening = make()
    for name in ("kept-as", ""):
        error = ValueError("no")
        error.hardened_letter = name  # type: ignore[attr-defined]
        ended(request(hardening), "failure", runtime=1.0, error=error, again=None)
    assert [one.letter for one in told(hardening, 2)] == ["kept-as", ""]


def test_a_message_that_no_task_takes(make: Callable[..., Hardening]) -> None:
    """A worker that was deployed before the task: the slot's story has its letter."""
    hardening = make()
    headers = {HEADER: SCHEDULED, "id": TASK_ID, "retries": 0}
    ended_unread(hardening, headers, "unknown", worker="w1@test")
    ended_unread(hardening, {"id": "another"}, "unknown", worker="w1@test")
    ended_unread(hardening, {HEADER: {"schedule": 3}, "id": "another"}, "unknown", worker="w1@test")
    (one,) = told(hardening, 1)
    assert (one.outcome, one.letter, one.started) == ("unknown", f"{TASK_ID}-0-0", None)


# --- what it costs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("marks", [None, {"v": 1}, {}, "nonsense", 7])
def test_a_task_that_no_schedule_has_sent_costs_nothing(make: Callable[..., Hardening], marks: Any) -> None:
    """No report, no thread, no connection, and not even a look at the settings."""
    hardening = make()
    looked: list[str] = []

    class Watched(SimpleNamespace):
        def __getattribute__(self, name: str) -> Any:
            looked.append(name)
            return super().__getattribute__(name)

    watched = Watched(**vars(request(hardening, marks)))
    looked.clear()
    before = threading.active_count()
    ended(watched, "success", runtime=1.0, error=None, again=None)
    assert looked == ["_request_dict"]
    assert "run_reports" not in hardening.__dict__
    assert threading.active_count() <= before  # those of earlier tests may end meanwhile


def test_a_redis_that_is_silent_holds_up_nothing(
    make: Callable[..., Hardening], records_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand ends are noted at once, it is said once, and they are written when Redis answers."""
    # As long a connection waits for an answer, too: a machine that stands still for a moment is no outage.
    monkeypatch.setattr(run_reports, "_PATIENCE", 2.0)
    proxy = TcpProxy(int(records_url.rpartition(":")[2].partition("/")[0]))
    hardening = make(hardened_redis_url=f"redis://127.0.0.1:{proxy.port}/{records_url.rpartition('/')[2]}")
    try:
        proxy.silence()
        began = time.monotonic()
        for _ in range(1000):
            ended(request(hardening), "success", runtime=1.0, error=None, again=None)
        assert time.monotonic() - began < 30, "to wait for Redis each time takes half an hour"
        until(lambda: "once Redis answers" in caplog.text, within=30, what="a word")
        proxy.heal()
        assert len(told(hardening, 1000, url=records_url)) >= 1000
        assert caplog.text.count("once Redis answers") == 1
    finally:
        reports = reports_of(hardening)
        assert reports is not None
        reports.close()
        proxy.stop()


def test_what_waits_is_bounded(
    make: Callable[..., Hardening], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Redis away for long the oldest are kept, and it is said that further ones are dropped."""
    monkeypatch.setattr(run_reports, "MOST", 10)
    # As long a connection waits for an answer, too: what is written and answered too late is written twice.
    monkeypatch.setattr(run_reports, "_PATIENCE", 3.0)
    away = threading.Event()
    away.set()
    write = RunStore.report

    def refuse(self: RunStore, reports: Any) -> None:
        if away.is_set():
            raise StoreUnavailableError("telling of scheduled runs", "it is away")
        write(self, reports)

    monkeypatch.setattr(RunStore, "report", refuse)
    hardening = make()
    with caplog.at_level(logging.WARNING, logger="celery_hardened.beat"):
        for _ in range(50):
            ended(request(hardening), "success", runtime=1.0, error=None, again=None)
        assert caplog.text.count("further ones are dropped") == 1
        away.clear()
        assert len(told(hardening, 10)) == 10
        until(lambda: "40 reports of scheduled runs were dropped" in caplog.text, within=30, what="their number")


def test_the_end_of_a_worker(make: Callable[..., Hardening], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noted is written before it ends."""
    monkeypatch.setattr(run_reports, "LAST", 60.0)  # on a busy machine Redis may not answer within two seconds
    hardening = make()
    ended(request(hardening), "success", runtime=1.0, error=None, again=None)
    reports = reports_of(hardening)
    assert reports is not None
    signals.worker_shutdown.send(sender=None)
    assert reports._thread is not None
    assert not reports._thread.is_alive()
    assert len(told(hardening, 1)) == 1


def test_two_apps_of_one_process(make: Callable[..., Hardening], monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is told to both: Celery 5.6 takes the method of one for that of the other."""
    monkeypatch.setattr(run_reports, "LAST", 60.0)
    both = make(), make()
    for hardening in both:
        ended(request(hardening), "success", runtime=1.0, error=None, again=None)
    signals.worker_shutdown.send(sender=None)
    for hardening in both:
        reports = reports_of(hardening)
        assert reports is not None
        assert reports._thread is not None
        assert not reports._thread.is_alive()


def test_a_second_worker_of_one_process(make: Callable[..., Hardening], monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the first one, in a test suite say, does not silence the next."""
    monkeypatch.setattr(run_reports, "LAST", 60.0)
    hardening = make()
    for number in (1, 2):
        ended(request(hardening), "success", runtime=1.0, error=None, again=None)
        signals.worker_shutdown.send(sender=None)
        assert len(told(hardening, number)) == number


def test_the_end_of_a_worker_whose_redis_is_away(
    make: Callable[..., Hardening], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not outlive its patience."""

    def refuse(self: RunStore, reports: Any) -> None:
        raise StoreUnavailableError("telling of scheduled runs", "it is away")

    monkeypatch.setattr(RunStore, "report", refuse)
    monkeypatch.setattr(run_reports, "_PATIENCE", 60.0)
    reports = RunReports(make())
    reports.note(RunReport(schedule="nightly", slot=SLOT, task_id=TASK_ID, outcome="success", at=SLOT))
    began = time.monotonic()
    reports.close()
    assert time.monotonic() - began < 20
    assert reports._thread is not None
    reports._thread.join(30)
    assert not reports._thread.is_alive()


def test_what_goes_wrong_in_it_is_logged(
    make: Callable[..., Hardening], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is raised into the end of a task."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(run_reports, "letter_id", fail)
    hardening = make()
    ended(request(hardening), "failure", runtime=1.0, error=None, again=None)
    ended_unread(hardening, {HEADER: SCHEDULED, "id": TASK_ID}, "unknown", worker="w1@test")
    assert caplog.text.count("missing in the history") == 2


# --- where it is on ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "on"),
    [
        ({}, True),
        ({"hardened_run_history": False}, False),
        ({"hardened_run_history": True}, True),
        ({"hardened_observe": True}, False),
        ({"hardened_dead_letter_store": "memory", "hardened_redis_url": None}, False),
    ],
)
def test_where_history_is_kept(make: Callable[..., Hardening], conf: dict[str, Any], on: bool) -> None:
    """Where the Django app is installed, unless the setting says otherwise, and there is a Redis."""
    made = harden(Celery("shop", broker="memory://", set_as_current=False))
    made.conf.update({"hardened_redis_url": "redis://127.0.0.1:1/0", **conf})
    assert is_on(Hardening.expect(made)) is on


def test_without_zones_it_is_off(make: Callable[..., Hardening]) -> None:
    """``USE_TZ = False``: moments could not be written, so none are collected, whatever the setting says."""
    with override_settings(USE_TZ=False):
        assert not is_on(make())
        assert not is_on(make(hardened_run_history=True))
    assert is_on(make())


def test_without_django_it_is_off(make: Callable[..., Hardening], monkeypatch: pytest.MonkeyPatch) -> None:
    """A project of Celery alone writes no reports that nobody would read; it may want them all the same."""
    monkeypatch.setattr(run_reports, "_is_installed", lambda: False)
    off = make()
    ended(request(off), "success", runtime=1.0, error=None, again=None)
    assert reports_of(off) is None
    assert off.redis.exists(Keys(off.prefix).runs) == 0
    assert is_on(make(hardened_run_history=True))


@pytest.mark.parametrize("value", ["yes", 1.5])
def test_a_setting_that_is_neither(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="hardened_run_history"):
        Settings(run_history=value)
