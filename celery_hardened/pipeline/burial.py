"""The letter of a task that failed for good, written in the pool process before anything says FAILURE."""

from __future__ import annotations

import logging
from typing import NoReturn

from celery.exceptions import Reject

from celery_hardened.dead_letter.keep import keep
from celery_hardened.dead_letter.letter import Reason
from celery_hardened.dead_letter.parking import chord_group
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.logs import log_args
from celery_hardened.pipeline import eager
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.letters import letter_for, may_park, park, write
from celery_hardened.pipeline.patience import observed, patiently

logger = logging.getLogger("celery_hardened.execute")


def bury(attempt: Attempt, error: BaseException, reason: Reason, *, deaths: int | None = None) -> NoReturn:
    """Write the letter, park what belongs to a chord, and let the failure take its course: always raises."""
    task, request, hardening = attempt.task, attempt.request, attempt.hardening
    if observed(hardening, "write a dead letter of %s: %s (%r)", task.name, reason, error):
        mark(error, "")  # nor is the parent to say it again
        raise error
    parked = not request.is_eager and may_park(hardening, task, request)
    letter = letter_for(
        hardening,
        attempt.wire,
        reason=reason,
        error=error,
        worker=str(request.hostname),
        queue=attempt.queue,
        shown=log_args(task, request.args or (), request.kwargs or {}),
        deaths=deaths if deaths is not None else attempt.marks.deaths,
        max_age=getattr(task, "dead_letter_max_age", None),
        parked=parked,
        group_id=chord_group(request),
    )
    if request.is_eager:
        keep(hardening.eager_dead_letters, letter)
        eager.remember(request.id, error)
        raise error
    try:
        patiently(hardening, lambda: write(hardening, letter))
    except StoreUnavailableError as problem:
        _unwritten(attempt, error, problem)
    attempt.close(finished=True)
    if parked:
        park(hardening, request, letter)
    # Tells the parent that there is a letter: it writes one for whatever did not pass here.
    mark(error, letter.id)
    raise error


def _unwritten(attempt: Attempt, error: BaseException, problem: StoreUnavailableError) -> NoReturn:
    """The letter could not be written: the message must not be acked."""
    task = attempt.task
    if task.acks_late:
        logger.error("no dead letter for %s, its message goes back: %s", task.name, problem)
        raise Reject(problem, requeue=True) from error
    logger.critical(
        "LOST dead letter: %s acks early, so its message is gone, and its letter could not be written: %s",
        task.name,
        problem,
        extra={"task": task.name, "task_id": attempt.request.id},
    )
    raise error


def mark(error: BaseException, letter: str) -> None:
    """Note on *error* which letter tells of it; ``""``: none is to be written."""
    try:
        error.hardened_letter = letter  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        # No __dict__: the parent will write it again, under the same id, which changes nothing.
        logger.debug("%s takes no attribute", type(error).__name__)
