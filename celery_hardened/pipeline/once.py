"""A scheduled message that may be in the queue twice, under one task id: the slot runs once.

Beat marks it so (``once``) where it cannot claim a slot and publish its message in one step, and may have
to publish again what has arrived already. Other messages cost nothing here.

The slot's key is claimed beside the task's own key of ``@idempotent``, if it has one, and first: the own key is
of the arguments, and those may have been edited, or made anew, between the two publishes.

::

    not yet run, or failed   claimed, and the body runs
    runs                     comes back when that may have ended: it may be that run's own message, delivered again
    done                     dropped; a redelivery, whose worker may have died before it told, gets the result
"""

from __future__ import annotations

import logging
import random
from uuid import uuid4

from celery.exceptions import Ignore

from celery_hardened.errors import ResultNotKeptError, StoreUnavailableError
from celery_hardened.idempotency.contract import Done, Won
from celery_hardened.idempotency.policy import busy_delay
from celery_hardened.lease_clock import now
from celery_hardened.marks import is_once
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.claim import Claim, lifetime_of_slot, slot_key
from celery_hardened.pipeline.come_back import ComeBack
from celery_hardened.pipeline.ending import ends_as
from celery_hardened.pipeline.letters import OWNER
from celery_hardened.pipeline.patience import observed
from celery_hardened.pipeline.replay import Replay, replay

logger = logging.getLogger("celery_hardened.idempotency")

_uniform = random.SystemRandom().uniform


def take_slot(attempt: Attempt) -> Replay | None:
    """Claim the slot of this run for it. ``None``: it runs; a ``Replay`` is its answer instead.

    Raises:
        ComeBack: Another delivery runs the slot, or the store does not answer.
        celery.exceptions.Ignore: The slot was run before.
    """
    task, request, hardening = attempt.task, attempt.request, attempt.hardening
    if not is_once(request.headers) or request.is_eager:
        return None
    key = slot_key(task, attempt.marks)
    if key is None or observed(hardening, "claim the slot of %s", task.name):
        return None
    owner = (request.properties or {}).get(OWNER) or uuid4().hex
    store, lease, lifetime = hardening.effects.claims, hardening.settings.lease, lifetime_of_slot(task, hardening)
    sent = now()
    try:
        answer = store.claim(key, owner=owner, task_id=str(request.id), fingerprint="", lease=lease, lifetime=lifetime)
    except StoreUnavailableError as problem:
        raise ComeBack(str(problem), delay=busy_delay(lease, lease, _uniform), error=problem) from problem
    if isinstance(answer, Won):
        claim = Claim(task.name, key, answer.fence, owner, lifetime, store, hardening)
        attempt.notes["slot"] = claim  # before it is renewed: from here on it is released whatever comes
        claim.held = hardening.effects.renewals.hold(key, owner, lease, sent=sent)
        return None
    if isinstance(answer, Done):
        return _again(attempt, key, answer)
    left = getattr(answer, "left", lease)
    # Without an error, so without a horizon: a letter would end the run that goes on, whose task id it has.
    raise ComeBack(f"another delivery runs {key}", delay=busy_delay(left, lease, _uniform))


def _again(attempt: Attempt, key: str, answer: Done) -> Replay:
    task, request = attempt.task, attempt.request
    if attempt.redelivered:
        try:
            return replay(attempt, key, answer)
        except ResultNotKeptError as problem:
            logger.debug("%s", problem)  # nobody has asked that it be kept
    logger.info(
        "%s[%s] is skipped: %s was run before",
        task.name,
        request.id,
        key,
        extra={"task": task.name, "task_id": request.id, "outcome": "deduplicated"},
    )
    raise ends_as(Ignore(f"{key} was run before"), "deduplicated")
