"""How a worker tries to reach its broker again: waits, ends and exceptions; and what it takes for a loss."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import kombu
import pytest
from amqp import Channel
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils import functional
from redis.exceptions import ReadOnlyError

from celery_hardened import harden
from celery_hardened.pipeline import reconnect
from celery_hardened.pipeline.reconnect import LONGEST_WAIT, NEXT_STEP, SOON, Reconnecting
from tests.unit.conftest import MakeApp


class Broker(Connection):
    """One that is away for the first *away* tries, with *error*."""

    def __init__(self, *urls: str, away: int = 0, error: BaseException | None = None) -> None:
        super().__init__(";".join(urls) or "memory://")
        self.away = away
        self.error = error or ConnectionRefusedError("refused")
        self.tried: list[str | None] = []

    @property
    def recoverable_connection_errors(self) -> tuple[type[Exception], ...]:
        return (OSError,)  # of a transport that has a network; memory:// has none

    def _establish_connection(self) -> Any:
        self.tried.append(self.hostname)
        if len(self.tried) <= self.away:
            raise self.error
        return super()._establish_connection()  # type: ignore[no-untyped-call]


class Worker(Reconnecting, Consumer):
    """A consumer as far as connecting goes."""

    def __init__(self, app: Any, *, started: bool = True) -> None:
        self.app = app
        self.first_connection_attempt = not started
        self.broker_connection_retry_attempt = 0
        self._connections = WeakSet()
        self._patience = None


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What kombu slept, in pieces. No time goes by."""
    pieces: list[float] = []
    monkeypatch.setattr(functional, "sleep", pieces.append)
    return pieces


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """To be told to stop, undone after the test."""
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(state, "should_terminate", None)
    return monkeypatch


def waits(log: pytest.LogCaptureFixture) -> list[float]:
    """The waits that were announced; Celery says "now" for less than a second."""
    found = re.findall(r"Trying again (?:in ([0-9.]+) seconds?|now)\.\.\.", log.text)
    return [float(seconds or 0) for seconds in found]


@pytest.mark.parametrize("started", [False, True], ids=["at the start", "after a loss"])
def test_it_tries_for_ever_and_often(
    make_app: MakeApp, slept: list[float], caplog: pytest.LogCaptureFixture, started: bool
) -> None:
    """Past Celery's hundred tries, with waits that grow to a few seconds and no further; the log says so."""
    worker, broker = Worker(harden(make_app()), started=started), Broker(away=250)
    with caplog.at_level(logging.ERROR):
        assert worker.ensure_connected(broker) is broker
    assert broker.connected
    assert len(broker.tried) == 251
    announced = waits(caplog)
    assert len(announced) == 250
    assert announced[1] <= 2.0
    assert all(earlier <= later for earlier, later in pairwise(announced))
    assert LONGEST_WAIT / 2 < announced[-1] <= LONGEST_WAIT <= 5
    assert sum(slept) == pytest.approx(sum(announced), abs=250 * 0.01 + 2)
    assert "(250, without end)" in caplog.text
    assert (worker.first_connection_attempt, worker.broker_connection_retry_attempt) == (False, 0)


def test_workers_do_not_come_back_in_step(make_app: MakeApp, slept: list[float]) -> None:
    """First and longest wait differ between workers that are cut off at one moment."""
    first, longest = set(), set()
    for _ in range(10):
        slept.clear()
        Worker(harden(make_app())).ensure_connected(Broker(away=1))
        first.add(sum(slept))
        slept.clear()
        Worker(harden(make_app())).ensure_connected(Broker(away=50))
        longest.add(sum(slept[-int(LONGEST_WAIT) :]))
    assert len(first) > 5
    assert len(longest) > 5


def test_every_host_of_a_failover_list_is_tried_before_a_wait(
    make_app: MakeApp, slept: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """In turn, as Celery does."""
    broker = Broker("memory://a", "memory://b", "memory://c", away=5)
    with caplog.at_level(logging.ERROR):
        Worker(harden(make_app())).ensure_connected(broker)
    assert broker.tried == ["a", "b", "c", "a", "b", "c"]
    assert len(waits(caplog)) == 1
    assert caplog.text.count("Will retry using next failover") == 4


@pytest.mark.parametrize(
    ("flag", "ending"), [("should_stop", WorkerShutdown), ("should_terminate", WorkerTerminate)], ids=str
)
def test_it_stops_while_it_waits(
    make_app: MakeApp, stops: pytest.MonkeyPatch, flag: str, ending: type[BaseException]
) -> None:
    """SIGTERM ends it within two seconds of waiting, and after each try."""
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if sum(naps) > 20:
            stops.setattr(state, flag, 0)

    stops.setattr(functional, "sleep", sleep)
    with pytest.raises(ending):
        Worker(harden(make_app())).ensure_connected(Broker(away=10_000))
    assert 20 < sum(naps) <= 22
    assert max(naps) <= 1.0

    broker = Broker(away=10_000)
    with pytest.raises(ending):
        Worker(harden(make_app())).ensure_connected(broker)
    assert len(broker.tried) == 1


def test_an_error_of_another_kind_is_not_retried(make_app: MakeApp, slept: list[float]) -> None:
    """A bug, say, in a credential provider, ends the worker as it did before."""
    broker = Broker(away=1, error=TypeError("no provider"))
    with pytest.raises(TypeError, match="no provider"):
        Worker(harden(make_app())).ensure_connected(broker)
    assert len(broker.tried) == 1
    assert slept == []


@pytest.mark.parametrize(
    ("conf", "tries", "ends"),
    [
        ({"broker_connection_max_retries": 3}, 4, OperationalError),
        ({"broker_connection_max_retries": 0}, 1, OperationalError),
        ({"broker_connection_retry": False}, 2, ConnectionRefusedError),
        ({"hardened_observe": True}, 101, OperationalError),
    ],
    ids=str,
)
def test_celerys_own_behaviour_where_the_user_says_so(
    make_app: MakeApp, slept: list[float], conf: dict[str, Any], tries: int, ends: type[Exception]
) -> None:
    """With its number of tries come its waits, which the number was chosen for; a dry run changes neither."""
    broker = Broker(away=10_000)
    with pytest.raises(ends):
        Worker(harden(make_app(**conf))).ensure_connected(broker)
    assert len(broker.tried) == tries
    if tries > 1:
        longest = 30 if kombu.VERSION[:2] >= (5, 7) else 32
        assert sum(slept) == sum(min(2 * n, longest) for n in range(1, tries))


def test_without_a_number_of_his_own_the_waits_are_ours(make_app: MakeApp, slept: list[float]) -> None:
    """``None``, which is for ever in Celery too, takes nothing back."""
    Worker(harden(make_app(broker_connection_max_retries=None))).ensure_connected(Broker(away=150))
    assert sum(slept) <= 150 * LONGEST_WAIT


# --- a connection that is lost, or of no use ---------------------------------------------------------


class Bare:
    """What the mix-in finds of Celery's consumer."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.conninfo = app.connection_for_read()
        self.connection_errors: tuple[type[Exception], ...] = self.conninfo.connection_errors
        self.lost: list[Exception] = []

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        self.lost.append(exc)
        if isinstance(exc, TimeoutError):
            raise AttributeError("'NoneType' object has no attribute 'hostname'")


class Losing(Reconnecting, Bare): ...


@pytest.mark.parametrize(
    ("broker", "conf", "lost"),
    [
        ("redis://nowhere.invalid/0", {}, True),
        ("sentinel://nowhere.invalid/0", {}, True),
        ("redis://nowhere.invalid/0", {"broker_channel_error_retry": False}, False),
        ("redis://nowhere.invalid/0", {"hardened_observe": True}, False),
        ("amqp://nowhere.invalid//", {}, False),
        ("memory://", {}, False),
    ],
    ids=str,
)
def test_a_redis_that_refuses_work_is_away(make_app: MakeApp, broker: str, conf: dict[str, Any], lost: bool) -> None:
    """READONLY and the like are lost connections; on AMQP a channel's error may be a mistake of the user's."""
    consumer = Losing(harden(make_app(broker=broker, **conf)))
    assert issubclass(ReadOnlyError, consumer.connection_errors) is lost


def test_what_fails_in_closing_a_lost_connection_ends_nothing(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker goes on to reconnect, and says what it was."""
    consumer, error = Losing(harden(make_app())), TimeoutError("no answer")
    consumer.on_connection_error_after_connected(error)
    assert consumer.lost == [error]
    assert "has no attribute 'hostname'" in caplog.text


def test_a_connection_lost_soon_is_waited_for(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once the first time, then longer each time, up to the longest wait; at once again after a good one."""
    now = [1000.0]
    monkeypatch.setattr(reconnect.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(reconnect.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    consumer = Losing(harden(make_app()))

    def lose() -> float:
        begin = now[0]
        consumer.on_connection_error_after_connected(ReadOnlyError("READONLY"))
        return now[0] - begin

    assert [lose() for _ in range(9)] == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3, 3]
    now[0] += SOON
    assert [lose(), lose()] == [0, 0.5]


def test_it_stops_while_it_waits_for_a_connection_that_was_of_no_use(
    make_app: MakeApp, stops: pytest.MonkeyPatch
) -> None:
    """SIGTERM is not swallowed by what keeps the worker up."""
    consumer = Losing(harden(make_app()))
    consumer.on_connection_error_after_connected(ReadOnlyError("READONLY"))
    stops.setattr(state, "should_stop", 0)
    with pytest.raises(WorkerShutdown):
        consumer.on_connection_error_after_connected(ReadOnlyError("READONLY"))


def test_what_celery_calls_and_what_kombu_takes() -> None:
    """The seams: Celery asks the connection it was given, and its callback for errors takes ``next_step``."""
    asked = inspect.getsource(Consumer.ensure_connected)
    assert "conn.ensure_connection(" in asked
    assert "callback=maybe_shutdown" in asked
    assert "next_step=CONNECTION_RETRY_STEP" in asked
    announced = NEXT_STEP.format(when="in 1 second", retries=3, max_retries=100)
    assert announced == "Trying again in 1 second... (3, without end)"
    parameters = set(inspect.signature(Connection._ensure_connection).parameters)
    assert {"errback", "max_retries", "interval_start", "interval_step", "interval_max", "callback"} <= parameters
    assert "on_connection_error_after_connected(exc)" in inspect.getsource(Consumer.start)
    assert "recoverable_errors = self.connection_errors" in inspect.getsource(Consumer.start)


@pytest.mark.parametrize("observe", [False, True])
def test_a_heartbeat_is_tried_once(make_app: MakeApp, observe: bool) -> None:
    """Events are not sent again and again in the loop that consumes, and not at all by a connection that is lost."""

    class Dispatcher:
        enabled = True

        def __init__(self) -> None:
            self.sent: list[dict[str, Any]] = []

        def send(self, type: str, **fields: Any) -> None:
            self.sent.append({"type": type, **fields})

    worker, dispatcher = Worker(harden(make_app(hardened_observe=observe))), Dispatcher()
    worker.event_dispatcher = dispatcher
    dispatcher.send("worker-heartbeat", retry=True)
    assert dispatcher.sent == [{"type": "worker-heartbeat", "retry": observe}]
    worker._tell_nobody()
    assert dispatcher.enabled is observe


def test_events_wait_for_no_confirmation() -> None:
    """py-amqp puts the waiting publish before its class's own one, where it can be taken away again."""
    channel = object.__new__(Channel)
    vars(channel)["basic_publish"] = channel.basic_publish_confirm
    dispatcher = SimpleNamespace(
        producer=SimpleNamespace(channel=channel),
        connection=SimpleNamespace(transport=SimpleNamespace(driver_type="amqp")),
    )
    reconnect._unconfirmed(dispatcher)
    assert channel.basic_publish.__func__ is Channel._basic_publish
    assert "self.basic_publish = self.basic_publish_confirm" in inspect.getsource(Channel.__init__)
