"""A worker without processes, network or waiting: Celery's own consumer and solo pool over ``memory://``.

Messages go all the way (strategy, request, tracer, pipeline, ack), one at a
time, when the test says so. A countdown is noted and not waited for.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from celery import Celery, _state, signals
from celery.worker import state
from kombu.message import Message


class Timer:
    """Takes the place of the worker's timer: nothing is due before ``run_due()``."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, int, Any, tuple[Any, ...]]] = []
        self._count = itertools.count()

    def call_at(self, at: Any, fun: Any, args: tuple[Any, ...] = (), **options: Any) -> None:
        heapq.heappush(self.calls, (at, next(self._count), fun, args))

    def call_after(self, seconds: float, fun: Any, args: tuple[Any, ...] = (), **options: Any) -> None:
        self.call_at(seconds, fun, args)

    def run_due(self) -> None:
        """Everything that waits is due now."""
        calls, self.calls = self.calls, []
        for _, _, fun, args in calls:
            fun(*args)


class InProcessWorker:
    """
    Serves the default queue of *app*, message by message.

    Attributes:
        seen: Every message that was delivered, as it arrived.
    """

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.seen: list[Message] = []
        app.set_current()  # the tracer asks for it, as it may in a pool process
        # Not the class that `celery worker` starts: that one would patch Celery for the whole process.
        self.controller: Any = app.WorkController(pool="solo", hostname="w@test", loglevel="ERROR")
        self.consumer: Any = self.controller.consumer
        self.timer = self.consumer.timer = Timer()
        self.consumer.pool = self.controller.pool
        self.consumer.qos = _NoQoS()
        # Celery 5.6 keeps acks for the next turn of its loop.
        self.consumer.call_soon = lambda ack, *args, **options: ack(*args, **options)
        self.connection: Any = app.connection_for_read()
        self.consumer.connection = self.connection
        self.consumer.task_consumer = app.amqp.TaskConsumer(
            self.connection.channel(), on_decode_error=self.consumer.on_decode_error
        )
        self.consumer.update_strategies()
        take = self.consumer.create_task_handler()

        def on_message(message: Message) -> None:
            self.seen.append(message)
            take(message)

        self.consumer.task_consumer.on_message = on_message
        self.consumer.task_consumer.consume()

    def step(self) -> bool:
        """Take and run one message; ``False`` if none waits."""
        before = len(self.seen)
        try:
            self.connection.drain_events(timeout=0.01)
        except TimeoutError:
            return False
        self.timer.run_due()
        return len(self.seen) > before

    def run(self, most: int = 50) -> int:
        """Run until no message is left, or *most* have come; how many did."""
        for count in range(most):
            if not self.step():
                return count
        return most

    @property
    def unacked(self) -> int:
        """Messages that were delivered and neither acked nor rejected."""
        channel = self.consumer.task_consumer.channel
        return len(channel.qos._delivered) - len(channel.qos._dirty)

    def __enter__(self) -> InProcessWorker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()
        state.reset_state()
        _state._set_task_join_will_block(False)  # what a solo pool says of its process


class _NoQoS:
    value = 1
    max_prefetch = None

    def increment_eventually(self, *_: object) -> None: ...

    def decrement_eventually(self, *_: object) -> None: ...


@contextmanager
def outcomes() -> Iterator[list[str]]:
    """Note every ``task_success``, ``task_failure`` and ``task_retry`` that is sent meanwhile."""
    noted: list[str] = []
    receivers = []
    for name in ("task_success", "task_failure", "task_retry"):

        def note(sender: Any = None, name: str = name, **_: Any) -> None:
            noted.append(name.removeprefix("task_"))

        getattr(signals, name).connect(note, weak=False)
        receivers.append((name, note))
    try:
        yield noted
    finally:
        for name, note in receivers:
            getattr(signals, name).disconnect(note)
