"""The windows that a message holds, from its delivery to its end: of ``@deduplicate``, and of its schedule.

::

    (acked)   puts it on a lease                        early acks alone: see early_ack.py
    started   until="start": frees it                   before the body, only with a mark
    waits     holds it for the whole wait               its message is sent again as it is
    kept      likewise                                  the next attempt is published
    ended     frees it, unless a window still runs      after the body, or instead of it

They are named in the message's header, each with its end, so that whoever sees the last of a task
can free them: a pool process, its parent, or a worker that does not know the task.

A redriven message has given them back with its letter. It takes each again when it starts, if
nobody has it by then; if somebody has, both run.
"""

from __future__ import annotations

import logging
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded

from celery_hardened.dedup.moment import seconds_until
from celery_hardened.dedup.policy import unseen
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import Marks, has_window
from celery_hardened.pipeline.patience import patiently
from celery_hardened.pipeline.windows import (
    begun,
    handed_on,
    in_pool_process,
    renewal,
    told_by,
    ttl_of_publish,
    ttl_of_run,
    windows,
)

logger = logging.getLogger("celery_hardened.dedup")


def kept(hardening: Hardening, task: Any, options: dict[str, Any], task_id: str) -> None:
    """The next attempt of a task is about to be published: it keeps its windows, whatever the store says.

    Args:
        options: As ``app.send_task`` gets them.
    """
    headers = options.get("headers")
    if task is None or not has_window(headers) or hardening.settings.observe:
        return
    marks = Marks.read(headers)
    for key, until in marks.windows:
        # Before it began it may have been put on a lease, too: see early_ack.py.
        leased = renewal(hardening).drop(key, task_id) or not task.acks_late
        begun(hardening).take(key, task_id)
        try:
            if until == "finish":
                ttl = ttl_of_publish(hardening, task, options)
                windows(hardening).enter(key, task_id=task_id, ttl=ttl, told=told_by(marks))
            elif until == "window" and leased:
                windows(hardening).hold(key, task_id=task_id, ttl=None, told=told_by(marks))
        except StoreUnavailableError as problem:
            logger.warning("a retry of %s[%s] may lose its deduplication key: %s", task.name, task_id, problem)


def started(hardening: Hardening, task: Any, marks: Marks, task_id: str) -> None:
    """The body of *task* is about to begin. The store is asked only where something changes.

    Raises:
        SoftTimeLimitExceeded: As the body would. Nothing else: a key is no reason to fail a task.
    """
    for key, until in marks.windows:
        try:
            _started(hardening, task, marks, key, until, task_id)
        except StoreUnavailableError as problem:
            logger.warning("the start of %s[%s] is not told to its deduplication key: %s", task.name, task_id, problem)
            if until == "start":
                renewal(hardening).free_later(key, task_id)
            elif not task.acks_late:
                _keep_unheard(hardening, task, marks, key, task_id)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception("the start of %s[%s] is not told to its deduplication key", task.name, task_id)


def _started(hardening: Hardening, task: Any, marks: Marks, key: str, until: str, task_id: str) -> None:
    lease, early = hardening.settings.lease, not task.acks_late
    store = windows(hardening)
    if until == "start":
        store.leave(key, task_id=task_id)
        begun(hardening).note(key, task_id)
    elif until == "window":
        if early:
            if store.hold(key, task_id=task_id, ttl=lease, told=told_by(marks)):
                renewal(hardening).keep(key, task_id, most=ttl_of_run(hardening, task))
        elif task.request.expires:
            store.hold(key, task_id=task_id, ttl=None)
    elif early:
        # Nobody would know if it were lost with its worker: from here on it lives on a lease.
        if store.enter(key, task_id=task_id, ttl=lease, told=told_by(marks)) == task_id:
            renewal(hardening).keep(key, task_id, most=ttl_of_run(hardening, task))
    elif task.request.expires or marks.redrive is not None:
        # It cannot expire any more; and a redrive takes a key that its dead letter gave back.
        store.enter(key, task_id=task_id, ttl=ttl_of_run(hardening, task))


def _keep_unheard(hardening: Hardening, task: Any, marks: Marks, key: str, task_id: str) -> None:
    """The body runs, and the store may not have heard of it: lease *key* when it answers again.

    It may live on the lease of its early ack, which must not run out while the body runs.
    """
    store, lease = windows(hardening), hardening.settings.lease

    def again() -> bool:
        leased = store.lease(key, task_id=task_id, lease=lease, published=told_by(marks))
        return leased or store.renew(key, task_id=task_id, lease=lease)  # it has heard of it

    renewal(hardening).keep(key, task_id, most=ttl_of_run(hardening, task), by=again)


def waits(hardening: Hardening, task: Any, marks: Marks, task_id: str, delay: float) -> None:
    """The message of *task* is about to be sent again as it is, to run in *delay* seconds. Never raises.

    A task that acked early has lived on a lease, which nobody renews while its message waits.
    """
    for key, until in marks.windows:
        if until == "start" and begun(hardening).take(key, task_id):
            continue
        try:
            _waits(hardening, task, marks, key, until, task_id, delay)
        except Exception as problem:  # noqa: BLE001 - it must be sent again, whatever became of its key
            logger.warning("%s[%s] waits again and may lose its deduplication key: %s", task.name, task_id, problem)


def _waits(hardening: Hardening, task: Any, marks: Marks, key: str, until: str, task_id: str, delay: float) -> None:
    store, lease = windows(hardening), hardening.settings.lease
    expires = seconds_until(task.request.expires, now=hardening.app.now(), timezone=hardening.app.timezone)
    most = None if expires is None else unseen(expires, lease=lease)
    if until == "window":
        store.hold(key, task_id=task_id, ttl=most, told=told_by(marks))
    else:
        whole = max(0.0, delay) + ttl_of_run(hardening, task)
        # Not hold: its lease may have run out. If another task has it by now, both run.
        ttl = whole if most is None else min(whole, most)
        store.enter(key, task_id=task_id, ttl=ttl, told=told_by(marks))
    renewal(hardening).drop(key, task_id)


def ended(hardening: Hardening, marks: Marks, task_id: str, *, well: bool) -> None:
    """There will be no further attempt of *task_id*. Never raises.

    A pool process tries patiently: it may be replaced after this very task, and what it meant to
    free later would be forgotten. The worker itself has a loop to serve, and lives longer.

    Args:
        well: It succeeded, or ended itself (``Ignore``). ``False``: it is a dead letter, expired, revoked or lost.
    """
    for key, until in marks.windows:
        leased = renewal(hardening).drop(key, task_id)
        over = begun(hardening).take(key, task_id)
        given = handed_on(hardening).take(key, task_id)
        # One that ended without a start, as a replay does, has its key still.
        if (until == "start" and over) or (well and (given or (until == "window" and not leased))):
            continue
        _settle(hardening, marks, key, task_id, to_its_end=well and until == "window")


def _settle(hardening: Hardening, marks: Marks, key: str, task_id: str, *, to_its_end: bool) -> None:
    """Free *key*, or leave it held to the end of its window."""

    def settle() -> bool:
        if to_its_end:
            return windows(hardening).hold(key, task_id=task_id, ttl=None, told=told_by(marks))
        return windows(hardening).leave(key, task_id=task_id)

    try:
        if in_pool_process():
            patiently(hardening, settle)
        else:
            settle()
    except (StoreUnavailableError, SoftTimeLimitExceeded) as problem:
        logger.warning("deduplication key %s is freed later: %s", key, problem)
        renewal(hardening).free_later(key, task_id)
    except Exception:
        logger.exception("deduplication key %r of %s is not freed", key, task_id)
