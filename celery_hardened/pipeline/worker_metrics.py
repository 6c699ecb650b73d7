"""Lets a worker count: where its counts go, what is shown as 0 from the start, and what it looks at when asked.

::

    before the pool forks    the registry is this process's, and children have a side channel to it
    each second              what children have told is taken in; likewise at each scrape
    at a scrape              gauges: what runs, what waits here
    a child ends             it says what it has kept because the side channel was full
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from celery import signals
from celery.utils.imports import symbol_by_name

from celery_hardened.hardening import Hardening
from celery_hardened.metrics.catalogue import DEAD_LETTERS, TASKS
from celery_hardened.metrics.outcome import FROM_THE_START
from celery_hardened.metrics.worker import WorkerGauges
from celery_hardened.pipeline.counting import compose_counted

logger = logging.getLogger("celery_hardened.metrics")

#: Seconds between two looks at what children have told.
EVERY: Final = 1.0


def count_worker(hardening: Hardening, worker: Any) -> None:
    """Let *worker* count from now on. To be called before its pool is made."""
    metrics, app = hardening.metrics, hardening.app
    metrics.keep_here(forks=True)  # other pools fork too: a beat in the worker, a task that uses processes
    if metrics.place != "here":
        return
    for name, task in app.tasks.items():
        if name.startswith("celery."):  # the others do so when their strategies are made
            task.Request = compose_counted(symbol_by_name(task.Request), hardened=False)
    show_zeros(hardening)
    metrics.registry.at_scrape(metrics.drain)
    metrics.registry.at_scrape(WorkerGauges(metrics.registry, worker, version=_version()).look)
    signals.worker_process_shutdown.connect(lambda **_: metrics.flush(), weak=False)


def drain_by(timer: Any, hardening: Hardening, last: Any = None) -> Any:
    """Take in what children have told, each second from now on.

    Args:
        timer: The consumer's.

        last: What this returned when the consumer connected before.
    """
    if last is not None:
        timer.cancel(last)
    return timer.call_repeatedly(EVERY, hardening.metrics.drain)


def show_zeros(hardening: Hardening) -> None:
    """Show the commonest outcomes of every known task as 0: an increase from nothing is no increase to Prometheus."""
    registry = hardening.metrics.registry
    for name, task in sorted(hardening.app.tasks.items()):
        if name.startswith("celery."):
            continue
        queue = _usual_queue(hardening, name, task)
        if queue is not None:
            registry.zero(TASKS, ((name, queue, outcome) for outcome in FROM_THE_START))
            registry.zero(DEAD_LETTERS, ((name, queue, "permanent"),))


def _usual_queue(hardening: Hardening, name: str, task: Any) -> str | None:
    """Where a task is sent without a word of its caller; ``None``: that cannot be told without arguments."""
    options = {"queue": task.queue} if getattr(task, "queue", None) else {}
    try:
        queue = hardening.app.amqp.router.route(options, name, (), {}).get("queue")
    except Exception as problem:  # noqa: BLE001 - a router of the project's, which may want arguments
        logger.debug("a router does not say where %s is sent: %r", name, problem)
        return None
    return str(getattr(queue, "name", queue)) if queue is not None else None


def _version() -> str:
    try:
        return version("celery_hardened")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
