"""A message that is not to run now comes back later: no attempt is spent, no worker slot held, nothing acked away."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import replace
from functools import partial
from typing import NoReturn

from celery.exceptions import Ignore, Reject

from celery_hardened.errors import ClaimLostError, HardenedError, StoreUnavailableError
from celery_hardened.metrics.outcome import Outcome
from celery_hardened.pipeline import held_windows
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.burial import bury
from celery_hardened.pipeline.ending import ends_as
from celery_hardened.pipeline.execution import Execution
from celery_hardened.pipeline.patience import patiently
from celery_hardened.pipeline.retry import expires_at, policy_of
from celery_hardened.poison.rebirth import publish_again
from celery_hardened.signals import task_waited, tell
from celery_hardened.transport.names import is_ours

logger = logging.getLogger("celery_hardened.execute")

_uniform = random.SystemRandom().uniform


class ComeBack(Exception):  # noqa: N818 - a wish of the pipeline's own, no error; no task sees it
    """Send this message again, later, instead of running it.

    Args:
        delay: Seconds; 0 is at once.
        error: What its dead letter says, if it may not wait that long.
    """

    def __init__(self, why: str, *, delay: float, error: HardenedError | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.delay = delay
        self.error = error


class HandBack(Exception):  # noqa: N818 - no error: like Retry and Ignore it says how the run ends
    """The worker stops, and the task has saved how far it has come: it goes on elsewhere."""


def come_back(attempt: Attempt, wish: ComeBack, outcome: Outcome = "waited") -> NoReturn:
    """Publish the message again and end this delivery; beyond the horizon, bury it. Always raises.

    A crash between the two leaves both: the same task id twice, and the claim lets one run.
    """
    task, request, hardening = attempt.task, attempt.request, attempt.hardening
    attempt.release()
    busy_since = attempt.marks.busy_since or time.time()
    if wish.error is not None and _too_late(attempt, wish.delay, busy_since):
        bury(attempt, wish.error, "expired_horizon")
    if request.is_eager and wish.error is not None:
        raise wish.error  # nobody else will ever end its claim
    attempt.close(finished=False)
    wire, marks = attempt.wire, attempt.marks
    if wish.error is not None:
        marks = replace(marks, busy_since=busy_since)
    if attempt.notes.get("progress"):
        wire, marks = replace(wire, headers={**wire.headers, "retries": 0}), replace(marks, deaths=0)
        marks = replace(marks, yields=False)  # it has begun, and what has begun goes on
    held_windows.waits(hardening, task, marks, str(request.id), wish.delay)
    again = partial(publish_again, hardening.app, wire, marks=marks, deaths=marks.deaths, delay=wish.delay)
    try:
        patiently(hardening, again, on=Exception)
    except Exception as problem:  # noqa: BLE001 - whatever the broker raised
        _not_sent(attempt, wish, problem)
    logger.info(
        "%s[%s] comes back in %.1f s: %s",
        task.name,
        request.id,
        wish.delay,
        wish.why,
        extra={"task": task.name, "task_id": request.id, "outcome": outcome},
    )
    what = {"task": task.name, "task_id": str(request.id), "why": wish.why, "delay": wish.delay}
    tell(task_waited, task.app, **what)
    attempt.notes["delay"] = wish.delay
    raise ends_as(Ignore(wish.why), outcome)


def leave_to_another(attempt: Attempt, lost: ClaimLostError) -> NoReturn:
    """Another run has the work of this one. Always raises.

    If that runs this very message, it decides and this delivery is over. If it runs a message of its
    own, ours comes back, and finds what the other one has done.
    """
    task = attempt.task
    for claim in (attempt.claim, attempt.slot):
        if claim is not None:
            claim.count_lost()
    logger.error("%s", lost, extra={"task": task.name, "task_id": attempt.request.id, "outcome": "lease_lost"})
    if not is_ours(attempt.wire.delivery_tag) and task.acks_late:
        # No lease tells whose the message is. If the broker has taken it back, a reject changes nothing.
        give_back(attempt, lost, "lease_lost")
    try:
        elsewhere = Execution(task).lost
    except StoreUnavailableError:
        elsewhere = False
    if elsewhere or attempt.claim is None:
        # Without a key the other run is this task too, by a twin of its message: it is the one that goes on.
        raise ends_as(Ignore(str(lost)), "lease_lost") from None
    lease = attempt.hardening.settings.lease
    come_back(attempt, ComeBack(str(lost), delay=lease + _uniform(0.0, lease / 3)), "lease_lost")


def give_back(attempt: Attempt, why: Exception, outcome: Outcome = "requeue") -> NoReturn:
    """Put the message back into its queue as it is: no attempt, no death, no letter. Always raises.

    One that was acked before it began has no message any more, so another is sent.
    """
    task, request, hardening = attempt.task, attempt.request, attempt.hardening
    if not task.acks_late:
        come_back(attempt, ComeBack(str(why), delay=0.0))
    logger.info(
        "%s[%s] goes back to its queue: %s",
        task.name,
        request.id,
        why,
        extra={"task": task.name, "task_id": request.id, "outcome": outcome},
    )
    try:
        hardening.deaths.record_return(attempt.start)
    except StoreUnavailableError as problem:
        logger.warning("the return of %s is not noted and may count as a death: %s", task.name, problem)
    raise ends_as(Reject(str(why), requeue=True), outcome) from None


def _too_late(attempt: Attempt, delay: float, busy_since: float) -> bool:
    """Would it wait beyond its horizon, which for a wait runs from the first one, or beyond its expiry?"""
    horizon = policy_of(attempt.task, attempt.hardening).horizon if attempt.task.is_hardened else None
    then, expires = time.time() + delay, expires_at(attempt.request)
    return (horizon is not None and then > busy_since + horizon) or (expires is not None and then > expires)


def _not_sent(attempt: Attempt, wish: ComeBack, problem: Exception) -> NoReturn:
    """The broker does not take it: its message must not be acked."""
    if attempt.task.acks_late:
        logger.error("%s could not be sent again, its message goes back: %s", attempt.task.name, problem)
        raise Reject(problem, requeue=True) from problem
    bury(attempt, wish.error or problem, "lost")
