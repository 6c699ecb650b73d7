"""What a worker looks at when it is asked for its numbers: what runs, what waits here, what it consumes.

Counted by nobody on the way: a task costs nothing for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from celery import __version__ as celery_version
from celery.worker import state
from celery.worker.request import Request

from celery_hardened.metrics.catalogue import (
    LONGEST_RUNNING,
    LOOP_TICK,
    WORKER_ACTIVE,
    WORKER_CONCURRENCY,
    WORKER_CONSUMING,
    WORKER_INFO,
    WORKER_RESERVED,
    WORKER_WAITING,
)
from celery_hardened.metrics.loop_tick import loop_tick
from celery_hardened.metrics.registry import Labels, Registry


class WorkerGauges:
    """Sets the gauges of *worker* in *registry*. Called at each scrape, from any thread.

    Args:
        version: Of this package.
    """

    def __init__(self, registry: Registry, worker: Any, *, version: str) -> None:
        self._registry = registry
        self._worker = worker
        pool = worker.pool_cls
        registry.set(WORKER_INFO, (version, celery_version, pool.__module__.rpartition(".")[2]), 1)

    def look(self) -> None:
        """What there is at this moment."""
        active = _snapshot(lambda: list(state.active_requests))
        reserved = set(_snapshot(lambda: list(state.reserved_requests))).difference(active)
        queues = consumed(self._worker)
        known = list(queues)
        self._registry.replace(WORKER_ACTIVE, _by_queue(active, known))
        self._registry.replace(WORKER_RESERVED, _by_queue(reserved, known))
        self._registry.replace(WORKER_WAITING, _by_queue(waiting(self._worker), known))
        self._registry.replace(LONGEST_RUNNING, _longest(active), fold=max)
        self._registry.replace(WORKER_CONSUMING, {(name,): float(is_on) for name, is_on in queues.items()})
        self._registry.set(WORKER_CONCURRENCY, (), _concurrency(self._worker))
        tick = loop_tick()
        if tick is not None:
            self._registry.set(LOOP_TICK, (), time.time() - (time.monotonic() - tick))


def consumed(worker: Any) -> dict[str, bool]:
    """The queues of *worker*, and whether it takes messages from them now."""
    consumer = getattr(worker, "consumer", None)
    tasks = getattr(consumer, "task_consumer", None)
    names = [str(name) for name in worker.app.amqp.queues.consume_from]
    if tasks is None or getattr(consumer, "connection", None) is None:
        return dict.fromkeys(names, False)
    return {name: bool(tasks.consuming_from(name)) for name in names}


def waiting(worker: Any) -> list[Any]:
    """Requests that this worker holds until they are due."""
    kept = getattr(state, "scheduled_requests", None)  # from Celery 5.7
    if kept is not None:
        return _snapshot(lambda: list(kept))
    timer = getattr(getattr(worker, "consumer", None), "timer", None)
    entries = _snapshot(lambda: list(timer.schedule.queue)) if timer is not None else []
    found = []
    for scheduled in entries:
        args = getattr(getattr(scheduled, "entry", scheduled), "args", None)
        if args and isinstance(args[0], Request):
            found.append(args[0])
    return found


def queue_of(request: Any) -> str:
    """The queue that *request* came from."""
    info = request.delivery_info or {}
    return getattr(request.message, "hardened_queue", "") or str(info.get("routing_key") or "")


def held_by_queue() -> Counter[str]:
    """Messages that the worker of this process has taken and not ended, but for those that it keeps until due."""
    held = set(_snapshot(lambda: list(state.reserved_requests))) | set(_snapshot(lambda: list(state.active_requests)))
    return Counter(queue_of(request) for request in held)


def _by_queue(requests: Iterable[Any], known: Iterable[str]) -> dict[Labels, float]:
    found: Counter[Labels] = Counter({(name,): 0 for name in known})
    found.update((queue_of(request),) for request in requests)
    return {labels: float(number) for labels, number in found.items()}


def _longest(active: Iterable[Any]) -> dict[Labels, float]:
    now, found = time.time(), dict[Labels, float]()
    for request in active:
        labels = (str(request.type),)
        found[labels] = max(found.get(labels, 0.0), now - (request.time_start or now))
    return found


def _concurrency(worker: Any) -> float:
    pool = getattr(worker, "pool", None)
    number = getattr(pool, "num_processes", None)  # of prefork: autoscaling changes it
    return float(number or worker.concurrency or 1)


def _snapshot(read: Callable[[], list[Any]]) -> list[Any]:
    for _ in range(10):
        try:
            return read()
        except RuntimeError:  # the loop's thread changed it meanwhile
            continue
    return []
