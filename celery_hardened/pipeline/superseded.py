"""A run of ``cancel_other`` or ``terminate_other`` that its schedule has replaced does not begin.

Those policies revoke the run before by Celery's broadcast, which workers keep in their memory: one that comes later
has not heard it. But the script that fires a slot takes the window of its schedule from the run that had it. So a run
of such a schedule is marked (``yields``), and before its body begins for the first time it asks whose the window is.

::

    pool process   whose is it?   one round trip, of marked messages alone
                     its own, or free    it is its own, and the body runs
                     another run's       Superseded
                     no answer           it comes back later
    its parent     Superseded     ended as Celery ends what it finds revoked: event, REVOKED, ack, signal

Later than all other checks: what another run of its key has done is replayed, with everything that waits for it.

Contained tasks are asked too. That changes whether a body runs, which is what their schedule has asked for.

Without an answer it does not run. That could start at once all runs that have piled up while no worker was there.
It comes back, and nothing is lost but time.

A retry does not ask: it has begun, and what has begun goes on. A message that is delivered again does; nobody knows
how far it had come.
"""

from __future__ import annotations

import logging
import random
from typing import Any, ClassVar

from celery.exceptions import Ignore

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.idempotency.policy import busy_delay
from celery_hardened.marks import is_yielding
from celery_hardened.metrics.outcome import Outcome
from celery_hardened.pipeline import held_windows
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.come_back import ComeBack
from celery_hardened.pipeline.patience import observed
from celery_hardened.pipeline.windows import ttl_of_run, windows

logger = logging.getLogger("celery_hardened.execute")

_uniform = random.SystemRandom().uniform


class Superseded(Ignore):  # type: ignore[misc]
    """A later run of its schedule has its window."""

    hardened_outcome: ClassVar[Outcome] = "superseded"  # read by ``ending.outcome_of``


def refuse_superseded(attempt: Attempt) -> None:
    """Do not begin what a later run of the same schedule has replaced.

    Raises:
        Superseded: One has.
        ComeBack: The store does not answer.
    """
    task, request, hardening = attempt.task, attempt.request, attempt.hardening
    if not is_yielding(request.headers) or request.retries or request.is_eager:
        return
    key, task_id = attempt.marks.run, str(request.id)
    if key is None or not attempt.marks.yields or observed(hardening, "ask whether %s is superseded", task.name):
        return
    lease = hardening.settings.lease
    # One that acks early is on a lease from its parent, who is to go on with it until the body begins.
    ttl = ttl_of_run(hardening, task) if task.acks_late else lease
    try:
        owner = windows(hardening).enter(key, task_id=task_id, ttl=ttl)
    except StoreUnavailableError as problem:
        raise ComeBack(str(problem), delay=busy_delay(lease, lease, _uniform), error=problem) from problem
    if owner == task_id:
        return
    logger.info(
        "%s[%s] is not started: %s of schedule %s has superseded it",
        task.name,
        task_id,
        owner,
        attempt.marks.schedule,
        extra={"task": task.name, "task_id": task_id, "outcome": "superseded"},
    )
    raise Superseded(f"superseded by {owner}")


def end_superseded(request: Any) -> None:
    """End *request* in the worker's parent as Celery ends one that it finds revoked, and free its own windows.

    If that cannot be recorded its message is sent again, and asks again.
    """
    hardening = request._hardening
    try:
        request._announce_revoked("superseded", False, None, False)
    except Exception as problem:  # noqa: BLE001 - whatever the result backend raises
        logger.warning("%s[%s] is superseded, which cannot be recorded: %s", request.name, request.id, problem)
        request._start_again(request.marks.deaths, hardening.settings.lease)
        return
    held_windows.ended(hardening, request.marks, str(request.id), well=False)
