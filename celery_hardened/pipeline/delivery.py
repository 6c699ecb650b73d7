"""Redis delivery in a worker: what the transport asks of Celery, and what it tells it.

The transport knows messages and leases; requests, time limits and dead letters are known here.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import signals
from celery.worker import state

from celery_hardened import lease_clock
from celery_hardened.errors import MalformedMessageError
from celery_hardened.hardening import Hardening
from celery_hardened.metrics.catalogue import LEASES_LOST, NO_TASK, TASKS
from celery_hardened.pipeline import task_log
from celery_hardened.pipeline.counting import count_end
from celery_hardened.pipeline.letters import HANDED, letter_for, write
from celery_hardened.pipeline.pool import forget_job
from celery_hardened.signals import lease_lost, tell
from celery_hardened.transport.delivery import Delivery
from celery_hardened.transport.leases import Lease
from celery_hardened.transport.names import is_ours
from celery_hardened.wire import Wire

logger = logging.getLogger("celery_hardened.transport")


def attend(hardening: Hardening, worker: Any) -> None:
    """Let *worker* start only what it holds a lease of, and answer its transport's questions."""
    delivery = hardening.delivery
    worker._process_task = only_if_held(worker._process_task, worker, delivery)
    if delivery is None:
        return
    signals.worker_shutdown.connect(partial(close_delivery, delivery, worker), weak=False)
    atexit.register(close_delivery, delivery, worker)
    delivery.on.lost = partial(report_lost, hardening)
    # solo and threads enforce no time limit: there a task beyond it runs on, and is nobody else's.
    delivery.on.working = partial(
        is_working, limits=worker.pool_cls.uses_semaphore or getattr(worker.pool_cls, "is_green", False)
    )
    delivery.on.stopping = note_stops(worker)
    delivery.on.bury = lambda tag, queue, raw: bury_malformed(hardening, str(worker.hostname), tag, queue, raw)


def note_stops(worker: Any) -> Callable[[], bool]:
    """Tell, from now on, whether *worker* was told to stop.

    A soft shutdown sleeps in the signal handler, and only then does Celery's own state say so.
    In a handler no more may be done than to take note.
    """
    told = threading.Event()
    wait = worker.wait_for_soft_shutdown

    def wait_for_soft_shutdown() -> Any:
        told.set()
        return wait()

    worker.wait_for_soft_shutdown = wait_for_soft_shutdown
    return lambda: told.is_set() or is_stopping()


def give_back_unstarted(hardening: Hardening) -> None:
    """A worker that stops waits for what it runs. What it has not started is for others at once."""
    if hardening.delivery is not None:
        hardening.delivery.give_back_unstarted()


def close_delivery(delivery: Delivery, worker: Any, sender: Any = None, **_: Any) -> None:
    """The worker's process ends: what it still holds goes back."""
    if sender in (None, worker):
        delivery.close()


def only_if_held(process: Callable[[Any], Any], worker: Any, delivery: Delivery | None) -> Callable[[Any], Any]:
    """Wrap the worker's step that hands a request to the pool.

    Between its arrival and this moment a request may have lost its lease, or gone back with a
    channel that was closed: then it runs elsewhere, and a start here would be a second one.

    Where the pool has a queue of its own (threads, greenlets) a request counts as started when its
    body begins (see ``execution.refuse_lost``), not now.
    """

    def leave(request: Any) -> None:
        state.task_ready(request)
        release = getattr(worker, "_quick_release", None)
        if worker.semaphore is not None and release is not None:
            release()

    def process_task(request: Any) -> Any:
        tag = delivery_tag_of(request)
        if is_ours(tag) and delivery is not None:
            begins = worker.pool_cls.uses_semaphore or not request.task.acks_late or request.name.startswith("celery.")
            if not (delivery.start(tag) if begins else delivery.holds(tag)):
                logger.info(
                    "%s[%s] is not started: it is not this worker's any more",
                    request.name,
                    request.id,
                    extra={"task": request.name, "task_id": request.id},
                )
                request._message.ack()  # frees its place in the prefetch window; in Redis it is not ours to end
                leave(request)
                count_end(request, "lease_lost")
                return None
            properties = request._request_dict.get("properties")
            if isinstance(properties, dict):
                properties[HANDED] = (os.getpid(), lease_clock.now())
        try:
            return process(request)
        except Exception:
            # It could not be handed over (its arguments are nested too deeply to pickle): its slot is free.
            leave(request)
            forget_job(worker.pool, request.id)
            raise

    return process_task


def delivery_tag_of(request: Any) -> Any:
    return getattr(request._message, "delivery_tag", None)


def report_lost(hardening: Hardening, lease: Lease) -> None:
    """Somebody else may run at this moment what runs here."""
    name = task_id = None
    for request in _active():
        if delivery_tag_of(request) == lease.tag:
            name, task_id = request.name, request.id
    logger.error(
        "lost the lease of %s[%s] while it ran: another worker may run it too. Its end here changes nothing there",
        name,
        task_id,
        extra={"task": name, "task_id": task_id, "queue": lease.queue, "outcome": "lease_lost"},
    )
    hardening.metrics.inc(LEASES_LOST, (lease.queue,))
    tell(lease_lost, hardening.app, task=name, task_id=task_id, queue=lease.queue)


def is_working(*, limits: bool = True) -> bool:
    """Does a task run that is within its time limit, or that has none and whose process lives?"""
    for request in _active():
        limit = limits and (request.time_limits[0] or request.task.time_limit)
        if limit:
            if time.time() - (request.time_start or time.time()) <= limit:
                return True
        elif _alive(request.worker_pid):
            return True
    return False


def is_stopping() -> bool:
    """Was this worker told to stop? (An exit code of 0 tells it too.)"""
    return any(asked is not None and asked is not False for asked in (state.should_stop, state.should_terminate))


def _active() -> list[Any]:
    for _ in range(10):
        try:
            return list(state.active_requests)
        except RuntimeError:  # the loop's thread changed the set meanwhile
            continue
    return []


def _alive(pid: int | None) -> bool:
    if not pid:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def bury_malformed(hardening: Hardening, worker: str, tag: str, queue: str, raw: bytes) -> None:
    """Write the dead letter of a queue item that is no message. Raises ``StoreUnavailableError``."""
    wire = Wire(
        body=raw,
        body_compressed=False,
        content_type=None,
        content_encoding=None,
        headers={},
        properties={},
        exchange="",
        routing_key=queue,
        delivery_tag=tag,
        redelivered=False,
        queue=queue,
    )
    error = MalformedMessageError("the item in the queue is no message of Celery's or kombu's")
    write(hardening, letter_for(hardening, wire, reason="malformed", error=error, worker=worker, queue=queue))
    hardening.metrics.inc(TASKS, (NO_TASK, queue, "malformed"))
    task_log.ended_unread(hardening, "malformed", task=NO_TASK, task_id="", queue=queue, worker=worker, error=error)
    logger.warning("an item of queue %r is no message; it is a dead letter now", queue, extra={"queue": queue})
