"""May this message be started at all? Asked before anything of it is touched."""

from __future__ import annotations

import logging
from dataclasses import replace

from celery.exceptions import Ignore, Reject

from celery_hardened.errors import StoreUnavailableError, TaskProcessLostError
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.burial import bury
from celery_hardened.pipeline.ending import ends_as
from celery_hardened.pipeline.letters import ALONE
from celery_hardened.pipeline.patience import observed, patiently
from celery_hardened.poison.policy import judge

logger = logging.getLogger("celery_hardened.execute")


def refuse_twin(attempt: Attempt) -> None:
    """A redriven message runs only if its letter's token is still free, or its own."""
    if not attempt.redriven or attempt.marks.redrive is None:
        return
    letter, token = attempt.marks.redrive
    task, hardening = attempt.task, attempt.hardening
    try:
        accepted = patiently(hardening, lambda: hardening.dead_letters.accept_start(letter, token=token))
    except StoreUnavailableError as problem:
        if task.acks_late:
            # Not knowing whether a twin runs, it must come back: running could double it.
            logger.warning("redriven message of %s goes back: %s", task.name, problem)
            raise Reject(problem, requeue=True) from problem
        # Its message is acked already: it runs now, perhaps twice, or never.
        logger.warning("redriven message of %s runs unchecked: %s", task.name, problem)
        return
    if not accepted:
        logger.warning("another message of dead letter %s is running; this twin ends here", letter)
        raise ends_as(Ignore(f"twin of a redrive of {letter}"), "deduplicated")


def refuse_poison(attempt: Attempt) -> None:
    """Write a suspect's start down; one that has killed enough is not started."""
    task, hardening = attempt.task, attempt.hardening
    if not attempt.suspect or observed(hardening, "record the start of suspect %s", task.name):
        return
    limit = hardening.settings.max_worker_deaths
    alone = bool((attempt.request.properties or {}).get(ALONE))
    try:
        record = hardening.deaths.open_start(attempt.start, redelivered=attempt.redelivered, alone=alone)
    except StoreUnavailableError as problem:
        # Fail open: an outage of the store must not stop healthy work, and a message
        # that kills now is counted by the parent, or at its next return.
        logger.warning("start of suspect %s is not recorded: %s", task.name, problem)
        return
    attempt.opened = True
    attempt.notes["start"] = attempt.start  # a checkpoint forgets the deaths before it
    attempt.marks = replace(attempt.marks, deaths=max(attempt.marks.deaths, record.deaths))
    if judge(record, limit=limit) == "poison":
        lost = TaskProcessLostError(task.name, record.deaths, limit, "its worker died while it ran")
        bury(attempt, lost, "poison", deaths=record.deaths)
