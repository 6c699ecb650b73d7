"""The drain while its store is down: nothing is acked, nothing is hot, nothing is forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_hardened.dead_letter import drain
from celery_hardened.dead_letter.drain import DrainInto, drain_step
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.errors import StoreUnavailableError


class Store:
    """Keeps letters, or is down, or has a mistake in it."""

    def __init__(self) -> None:
        self.letters: dict[str, DeadLetter] = {}
        self.tries = 0
        self.problem: Exception | None = None

    def put(self, letter: DeadLetter) -> bool:
        self.tries += 1
        if self.problem is not None and (letter.task_id == "odd" or isinstance(self.problem, StoreUnavailableError)):
            raise self.problem
        return self.letters.setdefault(letter.id, letter) is letter


class Message:
    """A message out of a dead letter queue."""

    errors = None
    content_type = "application/json"
    content_encoding = "utf-8"
    body = b"[[], {}, {}]"
    properties: dict[str, Any] = {}
    delivery_info: dict[str, Any] = {}
    delivery_tag = 1

    def __init__(self, task_id: str) -> None:
        death = {"queue": "orders", "reason": "rejected", "routing-keys": ["orders"], "exchange": ""}
        self.headers = {"task": "t", "id": task_id, "x-death": [death]}
        self.acked = False

    def ack(self) -> None:
        self.acked = True


class Worker(SimpleNamespace):
    """As much of a consumer as the step sees; its timers go off when the test says so."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Any]] = []
        timer = SimpleNamespace(call_after=lambda delay, call, args: self.due.append((delay, (call, args))))
        super().__init__(hostname="w1@test", timer=timer, app=Celery("t", set_as_current=False), connection=None)
        self.app.amqp.queues.consume_from.clear()

    def call_soon(self, call: Any, *args: Any) -> None:
        call(*args)

    def tick(self) -> float:
        """Let the next timer go off; how long it was set for."""
        delay, (call, args) = self.due.pop(0)
        call(*args)
        return delay


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def step(store: Store, worker: Worker) -> Any:
    into = DrainInto(store=lambda: store, recorded_deaths=lambda _: 0, version=lambda: None)  # type: ignore[arg-type,return-value]
    return drain_step(into)(worker)


DOWN = StoreUnavailableError("writing a dead letter", "ConnectionError")


def test_a_store_that_is_down_is_asked_ever_more_rarely(step: Any, worker: Worker, store: Store) -> None:
    """The pause doubles up to a minute, and each time one message alone is tried."""
    store.problem = DOWN
    for number in range(10):
        step._arrived(worker, "orders", Message(str(number)))
    assert store.tries == 1

    pauses = [worker.tick() for _ in range(9)]

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert store.tries == 10


def test_what_waited_is_dealt_with(step: Any, worker: Worker, store: Store) -> None:
    """When the store is back every message becomes a letter and is acked, and the next one waits for nothing."""
    store.problem = DOWN
    messages = [Message(str(number)) for number in range(10)]
    for message in messages:
        step._arrived(worker, "orders", message)
    worker.tick()
    assert not any(message.acked for message in messages)

    store.problem = None
    worker.tick()

    assert all(message.acked for message in messages)
    assert len(store.letters) == 10
    assert worker.due == []
    late = Message("late")
    step._arrived(worker, "orders", late)
    assert late.acked


def test_one_that_cannot_be_dealt_with_holds_up_no_other(step: Any, worker: Worker, store: Store) -> None:
    """A message over which our own code stumbles stays where it is; those after it are dealt with, the worker lives."""
    store.problem = ZeroDivisionError()
    odd, other = Message("odd"), Message("other")
    step._arrived(worker, "orders", odd)
    step._arrived(worker, "orders", other)

    assert (odd.acked, other.acked) == (False, True)
    worker.tick()
    assert not odd.acked
    store.problem = None
    worker.tick()
    assert odd.acked


def test_after_a_reconnect_old_plans_are_void(step: Any, worker: Worker, store: Store) -> None:
    """Messages of a lost connection are the broker's again: acking them on a new channel would ack others.
    Nor does the old timer try the new ones besides their own."""
    store.problem = DOWN
    old, new = Message("old"), Message("new")
    step._arrived(worker, "orders", old)
    step.stop(worker)
    step._arrived(worker, "orders", new)
    tries = store.tries

    worker.tick()
    assert store.tries == tries

    store.problem = None
    worker.tick()
    assert (old.acked, new.acked) == (False, True)


def test_held_too_long_they_are_given_back(
    step: Any, worker: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ten minutes the channels are closed and opened anew: RabbitMQ would do it after thirty,
    and take the worker's connection with them."""
    clock = 0.0
    monkeypatch.setattr(drain.time, "monotonic", lambda: clock)
    store.problem = DOWN
    step._arrived(worker, "orders", Message("1"))
    term = step._term
    clock = 601.0

    worker.tick()

    assert step._term == term + 1
    assert worker.due == []
