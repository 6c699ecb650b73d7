"""The letter is written before FAILURE and before the ack; one that cannot be written keeps the message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, signals
from kombu.message import Message

from celery_hardened import DeadLetter, HardenedTask, Hardening, Query, StoreUnavailableError
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from tests.support.in_process import InProcessWorker, outcomes
from tests.unit.conftest import MakeApp, patient


class Store(InMemoryDeadLetterStore):
    """A store that is down for so many writes, and notes when it takes one."""

    def __init__(self, hardening: Hardening, sequence: list[str]) -> None:
        super().__init__(retention=hardening.retention)
        self.down = 0
        self.sequence = sequence

    def put(self, letter: DeadLetter) -> bool:
        if self.down:
            self.down -= 1
            raise StoreUnavailableError("writing a dead letter", "refused")
        self.sequence.append("letter")
        return super().put(letter)


@pytest.fixture
def sequence(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What happened, in order: body, letter, failure, ack, requeue."""
    happened: list[str] = []

    def on_failure(**_: Any) -> None:
        happened.append("failure")

    def note(name: str, word: str) -> None:
        original = getattr(Message, name)

        def noted(self: Message, *args: Any, **options: Any) -> Any:
            requeue = "requeue" if options.get("requeue") or (args and args[-1] is True) else word
            happened.append(requeue)
            return original(self, *args, **options)

        monkeypatch.setattr(Message, name, noted)

    note("ack_log_error", "ack")
    note("reject_log_error", "reject")
    signals.task_failure.connect(on_failure)
    yield happened
    signals.task_failure.disconnect(on_failure)


@pytest.fixture
def app(make_hardened: MakeApp) -> Celery:
    return make_hardened(hardened_dead_letter_write_timeout=0.3)


@pytest.fixture
def store(app: Celery, sequence: list[str]) -> Store:
    hardening = Hardening.expect(app)
    store = Store(hardening, sequence)
    hardening.__dict__["dead_letters"] = store
    return store


def broken(app: Celery, sequence: list[str], **options: Any) -> Any:
    @app.task(**{"base": HardenedTask, "shared": False, "name": "charge", **options})
    def charge() -> None:
        sequence.append("body")
        raise ValueError("broken")

    return charge


def ids(store: Store) -> list[str]:
    return [stored.letter.id for stored in store.find(Query(), limit=10).letters]


def test_the_order(app: Celery, store: Store, sequence: list[str]) -> None:
    """Kill the worker between any two of these, and there is a letter or a message, or both."""
    with InProcessWorker(app) as worker:
        broken(app, sequence)
        worker.consumer.update_strategies()
        app.tasks["charge"].delay()
        worker.run()
    assert sequence == ["body", "letter", "failure", "ack"]


def test_the_order_of_a_contained_task_that_acks_late(app: Celery, store: Store, sequence: list[str]) -> None:
    charge = broken(app, sequence, base=Task, acks_late=True)
    with InProcessWorker(app) as worker:
        charge.delay()
        worker.run()
    assert sequence == ["body", "letter", "failure", "ack"]


def test_a_contained_task_acks_when_it_ever_did(app: Celery, store: Store, sequence: list[str]) -> None:
    """Before it runs."""
    charge = broken(app, sequence, base=Task)
    with InProcessWorker(app) as worker:
        charge.delay()
        worker.run()
    assert sequence == ["ack", "body", "letter", "failure"]


def test_a_store_that_blinks(app: Celery, store: Store, sequence: list[str]) -> None:
    """The write is tried again; there is one letter, and one run."""
    charge = broken(app, sequence)
    patient(app)
    store.down = 1
    with InProcessWorker(app) as worker:
        charge.delay()
        assert worker.run() == 1
    assert sequence == ["body", "letter", "failure", "ack"]


def test_a_store_that_is_down_keeps_the_message(
    app: Celery, store: Store, sequence: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither FAILURE nor ack: it goes back and comes again, until its letter is written, once."""
    charge = broken(app, sequence)
    with InProcessWorker(app) as worker:
        result = charge.delay()
        store.down = 10**6
        assert worker.step()
        assert "failure" not in sequence
        assert "ack" not in sequence
        assert "requeue" in sequence
        assert result.state == "PENDING"
        assert "its message goes back" in caplog.text
        store.down = 0
        sequence.clear()
        assert worker.run() == 1
    assert sequence == ["body", "letter", "failure", "ack"]
    assert ids(store) == [f"{result.id}-0-0"]


def test_an_early_acked_letter_is_not_lost_in_silence(
    app: Celery, store: Store, sequence: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """There is no message to keep. The parent tries once more; if that fails too, it is said out loud."""
    charge = broken(app, sequence, base=Task)
    with InProcessWorker(app) as worker:
        charge.delay()
        store.down = 10**6
        worker.run()
    assert "LOST dead letter: charge acks early" in caplog.text
    assert ids(store) == []


def test_a_failure_that_never_passed_the_pipeline(app: Celery, store: Store, sequence: list[str]) -> None:
    """A result that cannot be encoded fails after the body returned: the parent writes that letter."""

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge() -> object:
        return object()

    with InProcessWorker(app) as worker, outcomes() as noted:
        charge.delay()
        worker.run()
    assert noted == ["failure"]
    (stored,) = store.find(Query(), limit=2).letters
    assert (stored.letter.reason, stored.letter.error_type) == ("permanent", "kombu.exceptions.EncodeError")


def test_one_failure_is_one_letter_whoever_writes_it(app: Celery, store: Store, sequence: list[str]) -> None:
    """An exception that takes no attribute cannot tell the parent that there is a letter: the id is the same."""

    class SlottedError(Exception):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge() -> None:
        raise SlottedError

    with InProcessWorker(app) as worker:
        result = charge.delay()
        worker.run()
    assert ids(store) == [f"{result.id}-0-0"]
    assert sequence.count("failure") == 1


def test_a_success_on_a_later_run_resolves_the_letter(app: Celery, store: Store, sequence: list[str]) -> None:
    """A kill between letter and ack brings the message back; if it succeeds then, the letter is no open one."""
    runs: list[int] = []

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("broken")
        return "charged"

    with InProcessWorker(app) as worker:
        charge.delay()
        worker.run()
        (first,) = worker.seen
        with app.producer_or_acquire() as producer:  # as the broker sends it again
            producer.publish(
                first.body,
                routing_key=app.conf.task_default_queue,
                content_type=first.content_type,
                content_encoding=first.content_encoding,
                headers={**first.headers, "redelivered": True},
            )
        handle = worker.consumer.task_consumer.on_message

        def redelivered(message: Message) -> None:
            message.delivery_info["redelivered"] = True
            handle(message)

        worker.consumer.task_consumer.on_message = redelivered
        worker.run()
    assert len(runs) == 2
    assert store.stats().by_state == {"resolved": 1}
