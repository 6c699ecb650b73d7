"""What a key answers when its work is done: the result, kept with it or in the payload store."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore
from celery.states import SUCCESS
from kombu.utils.json import dumps, loads

from celery_hardened.errors import ResultNotKeptError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.idempotency.contract import Done
from celery_hardened.pipeline import payload
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.ending import ends_as
from celery_hardened.signals import task_replayed, tell

logger = logging.getLogger("celery_hardened.idempotency")

#: First byte of a stored result: what follows is the result itself, or where the payload store has it.
_INLINE, _ELSEWHERE = b"=", b"@"

#: Kept for a run that ended itself, and so has no result.
ENDED = b"!"


@dataclass(frozen=True, slots=True)
class Replay:
    """The work was done before; this is what it returned."""

    result: Any


def replay(attempt: Attempt, key: str, answer: Done) -> Replay:
    task, request = attempt.task, attempt.request
    if answer.result == ENDED:
        _tell(attempt, key)
        raise ends_as(Ignore(f"its work ended itself before, for key {key}"), "replayed")
    found = _not_kept(attempt, key) if answer.result is None else _kept(attempt, answer.result)
    attempt.hardening.metrics.note(str(request.id), "replayed")
    _tell(attempt, key)
    logger.info(
        "%s[%s] was done before for key %s: its result is replayed",
        task.name,
        request.id,
        key,
        extra={"task": task.name, "task_id": request.id, "outcome": "replayed"},
    )
    return found


def _tell(attempt: Attempt, key: str) -> None:
    tell(task_replayed, attempt.task.app, task=attempt.task.name, task_id=str(attempt.request.id), key=key)


def _kept(attempt: Attempt, result: bytes) -> Replay:
    form, rest = result[:1], result[1:]
    if form == _ELSEWHERE:
        rest = payload.load_result(attempt.hardening, attempt.task.name, loads(rest))
    return Replay(loads(rest))


def _not_kept(attempt: Attempt, key: str) -> Replay:
    task, request = attempt.task, attempt.request
    ignored = request.__dict__.get("ignore_result")
    ignored = task.ignore_result if ignored is None else ignored
    if not request.is_eager and not ignored:
        try:
            stored = task.backend.get_task_meta(request.id)
        except Exception as problem:  # noqa: BLE001 - no backend, or one that is away
            logger.debug("the result of %s is not in the result backend: %r", request.id, problem)
        else:
            if stored.get("status") == SUCCESS:  # this message was run before, and its result is where it belongs
                return Replay(stored.get("result"))
    # Whoever only waits for its end may have it; what goes on with its result may not go on with None.
    if attempt.in_workflow or not (ignored or isinstance(task.backend, DisabledBackend)):
        raise ResultNotKeptError(task.name, key)
    return Replay(None)


def kept_result(hardening: Hardening, task: str, result: Any, lifetime: float) -> bytes | None:
    """*result* as it is kept with the key; ``None`` if it cannot be."""
    try:
        text: bytes = dumps(result).encode()
    except Exception as problem:  # noqa: BLE001 - a __json__ of the user's may raise anything; the work is done
        logger.warning("a result of %s is no JSON and is not kept with its key: %s", task, type(problem).__name__)
        return None
    if len(text) <= hardening.settings.idempotency_result_max:
        return _INLINE + text
    try:
        kept = payload.store_result(hardening, text, max_age=lifetime)
    except StoreUnavailableError as problem:
        logger.warning("a result of %s is not kept with its key: %s", task, problem)
        return None
    if kept is not None:
        where: bytes = dumps(kept).encode()
        return _ELSEWHERE + where
    logger.warning(
        "a result of %s takes %s bytes and is not kept with its key (hardened_idempotency_result_max is %s, and "
        "no hardened_payload_store takes it)",
        task,
        len(text),
        hardening.settings.idempotency_result_max,
    )
    return None
