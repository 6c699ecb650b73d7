"""The facts of a worker's probes, gathered from Celery's own queues and consumer, without a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.concurrency import solo
from celery.utils.dispatch import Signal
from celery.worker.consumer import Consumer

from celery_hardened.health.state import worker_health
from celery_hardened.pipeline.loop_tick import tick_of
from celery_hardened.pipeline.worker_health import WorkerHealth


class Worker:
    """What is looked at: a ``WorkController`` with a consumer that has no loop."""

    pool_cls = solo.TaskPool

    def __init__(self, app: Any) -> None:
        self.app = app
        self.consumer: Any = None


class Fields(SimpleNamespace):
    """A consumer, for what is looked at of it."""

    __hash__ = object.__hash__  # signals keep their senders in a dictionary


@pytest.fixture
def worker(make_hardened: Callable[..., Any]) -> Iterator[Worker]:
    app = make_hardened(task_default_queue="mail")
    found = Worker(app)
    with app.connection_for_read() as connection:
        tasks = app.amqp.TaskConsumer(connection.channel())
        tasks.consume()
        found.consumer = Fields(app=app, connection=connection, task_consumer=tasks, controller=found)
        yield found


def test_a_queue_that_is_given_back(worker: Worker) -> None:
    """A worker that was told not to consume from a queue, and then to consume again, is ready: with every Celery."""
    health = WorkerHealth(worker, stall=60)
    health._on_ready(worker.consumer)  # its signal would reach all that other tests left connected
    tick_of(worker).turn()
    assert health.look().queues == ("mail",)
    Consumer.cancel_task_queue(worker.consumer, "mail")
    assert health.look().cancelled == ("mail",)
    assert not worker_health(health.look()).ready.good

    Consumer.add_task_queue(worker.consumer, "mail")
    facts = health.look()
    assert (facts.queues, facts.missing, facts.cancelled) == (("mail",), (), ())
    assert worker_health(facts).ready.good


def test_all_that_look_at_a_worker_hear_that_it_is_ready(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probes and what it says in Redis look apart: Celery 5.6 takes the method of one for that of the other."""
    monkeypatch.setattr(signals, "worker_ready", Signal(name="worker_ready"))  # nobody of another test hears it
    both = [WorkerHealth(worker, stall=60) for _ in range(2)]
    signals.worker_ready.send(sender=worker.consumer)
    assert [health.look().started for health in both] == [True, True]
