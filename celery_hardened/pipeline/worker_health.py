"""The facts that a worker's probes are made of, gathered from outside its loop. Nothing here asks the broker."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from celery import signals
from celery.concurrency import solo

from celery_hardened.health.state import WorkerFacts
from celery_hardened.pipeline import stopping
from celery_hardened.pipeline.delivery import is_stopping, is_working
from celery_hardened.pipeline.loop_tick import tick_of

#: Seconds between two looks after which the whole process stood still (a frozen container, swap), and its loop has
#: to get its turn first.
STOOD_STILL: Final = 5.0

#: Seconds without an answer of a Redis that is asked all the time. An answer takes one; the loop reconnects after four.
NO_ANSWER: Final = 5.0


class WorkerHealth:
    """Looks at one worker. Threads may share it.

    Args:
        worker: celery's ``WorkController``, before its consumer is made.

        stall: ``hardened_health_stall``.
    """

    def __init__(self, worker: Any, *, stall: float) -> None:
        self._worker = worker
        self._tick = tick_of(worker)
        self._stall = stall
        self._started = False
        self._began: frozenset[str] = frozenset()
        self._looked = self._awake = time.monotonic()
        self._deaf_since: float | None = None
        # Held weakly: as long as this lives. Celery 5.6 takes a method of another object for the same receiver, and a
        # worker has two of these: the uid tells them apart.
        signals.worker_ready.connect(self._on_ready, dispatch_uid=f"{__name__}.{id(self)}")

    def _on_ready(self, sender: Any = None, **_: Any) -> None:
        if getattr(sender, "controller", None) is self._worker and not self._started:
            self._began = frozenset(_names(self._told()))
            self._started = True

    def look(self) -> WorkerFacts:
        """What is so now.

        To be called each second, whether anybody asks or not: that the whole process stood still is told from the
        time between two looks, so after ``STOOD_STILL`` without one the loop is given time to turn first.
        """
        now = time.monotonic()
        if now - self._looked > STOOD_STILL:
            self._awake = now
        self._looked = now
        tick = self._tick
        turned = min(now - tick.turned, now - self._awake)
        consumer = getattr(self._worker, "consumer", None)
        apart = tick.connecting or (self._started and getattr(consumer, "connection", None) is None)
        working = turned > EVEN and issubclass(self._worker.pool_cls, solo.TaskPool) and is_working()
        told = self._selected(consumer)
        missing = self._missing(consumer, told, judge=not (apart or working) and turned < NO_ANSWER)
        if not missing:
            self._deaf_since = None
        elif self._deaf_since is None or self._deaf_since < self._awake:
            self._deaf_since = now
        deaf = 0.0 if self._deaf_since is None else now - self._deaf_since
        return WorkerFacts(
            pool=self._worker.pool_cls.__module__.rpartition(".")[2],
            started=self._started,
            stopping=stopping.told() or is_stopping(),
            turned=turned,
            tried=min(now - max(tick.tried, tick.turned), now - self._awake) if apart else None,
            working=working,
            queues=tuple(sorted(set(told) - set(missing))) if self._started and not apart else (),
            missing=missing,
            cancelled=tuple(sorted(self._began - set(told))),
            deaf=deaf,
            stall=self._stall,
        )

    def _told(self) -> Iterable[Any]:
        return tuple(self._worker.app.amqp.queues.consume_from.values())

    def _selected(self, consumer: Any) -> tuple[str, ...]:
        """Queues that it is to consume from.

        Celery 5.6 consumes again from a queue that ``add_consumer`` gives back, but leaves it deselected. So what is
        consumed is asked too; after the next loss of the connection, 5.6 does not consume from it, and that is told.
        """
        told = _names(self._told())
        tasks = getattr(consumer, "task_consumer", None)
        if tasks is None:
            return told
        return (*told, *sorted(name for name in self._began.difference(told) if tasks.consuming_from(name)))

    def _missing(self, consumer: Any, told: tuple[str, ...], *, judge: bool) -> tuple[str, ...]:
        """Queues that it should consume from and does not; none while that cannot be told."""
        if not self._started or not judge:
            return ()
        tasks = getattr(consumer, "task_consumer", None)
        if tasks is None:
            return told
        channel = tasks.channel
        active = _active(channel)
        # Without a queue of its own, as with broadcasts alone, a channel asks for nothing that could be answered.
        asks = bool(getattr(channel, "active_queues", True))
        if _is_shut(channel) or (asks and getattr(channel, "idle", 0.0) > NO_ANSWER):
            return told
        return tuple(
            name for name in told if not tasks.consuming_from(name) or (active is not None and name not in active)
        )


#: Seconds since a turn of the loop from which on it is asked whether a task holds it up.
EVEN: Final = 2.0


def _names(queues: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(queue.name) for queue in queues)


def _active(channel: Any) -> frozenset[str] | None:
    """Queues that a channel of kombu's Redis takes from; ``None``: it does not say. Those of a ``Broadcast`` are
    listened to, and listed apart."""
    active = getattr(channel, "active_queues", None)
    return None if active is None else frozenset(active) | frozenset(getattr(channel, "active_fanout_queues", ()))


def _is_shut(channel: Any) -> bool:
    """kombu's own channels say ``closed``, those of AMQP ``is_open``."""
    is_open = getattr(channel, "is_open", None)
    return not is_open if isinstance(is_open, bool) else bool(getattr(channel, "closed", False))
