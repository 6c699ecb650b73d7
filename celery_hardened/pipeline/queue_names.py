"""Which queues an app has: what a process that watches queues asks the broker for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from celery import Celery
from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE
from kombu import Queue
from kombu.common import Broadcast

logger = logging.getLogger("celery_hardened.metrics")


def queue_names(app: Celery, more: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of the queues that *app* declares, that its tasks and schedules are routed to, and *more*.

    Queues whose name holds that of a host, as broadcasts and workers' own ones, are left out: a new one comes
    with each host.
    """
    declared: Mapping[str, Queue] = app.amqp.queues
    names = [name for name, queue in list(declared.items()) if not _is_of_a_host(queue)]
    known = dict.fromkeys((*names, *_routed(app), *_in_routes(app), *_scheduled(app), *more))
    return tuple(name for name in known if name)


def _is_of_a_host(queue: Queue) -> bool:
    return isinstance(queue, Broadcast) or queue.exchange == WORKER_DIRECT_EXCHANGE


def _routed(app: Celery) -> Iterator[str]:
    """Where tasks that this process knows are sent."""
    said = False
    for name, task in sorted(app.tasks.items()):
        options = {"queue": task.queue} if getattr(task, "queue", None) else {}
        if name.startswith("celery.") and not options:
            continue
        try:
            queue = app.amqp.router.route(options, name, (), {}).get("queue")
        except Exception as problem:  # noqa: BLE001 - a router of the project's, which may want arguments
            if not said:
                logger.warning(
                    "a router could not say where %s is sent (%r): name its queue with --queues", name, problem
                )
            said = True
            continue
        if not isinstance(queue, Queue) or not _is_of_a_host(queue):
            yield from _name(queue)


def _in_routes(app: Celery) -> Iterator[str]:
    """What ``task_routes`` names for tasks that this process may not know."""
    routes: Any = app.conf.task_routes or ()
    for one in routes if isinstance(routes, (list, tuple)) else (routes,):
        pairs = (
            one.values()
            if isinstance(one, Mapping)
            else (pair[1] for pair in one if isinstance(pair, tuple))
            if isinstance(one, (list, tuple))
            else ()
        )
        for target in pairs:
            yield from _name(target.get("queue") if isinstance(target, Mapping) else target)


def _scheduled(app: Celery) -> Iterator[str]:
    schedule: Any = app.conf.beat_schedule
    for entry in schedule.values() if isinstance(schedule, Mapping) else ():
        options = entry.get("options") if isinstance(entry, Mapping) else None
        if isinstance(options, Mapping):
            yield from _name(options.get("queue"))


def _name(queue: Any) -> Iterator[str]:
    name = getattr(queue, "name", queue)
    if isinstance(name, str):
        yield name
