"""Parking: a dead letter of a chord's member keeps the chord open, so that a redrive completes it.

Celery fails a chord the moment a member fails, and a later success of that
member then changes nothing: the body never runs. A parked member fails with its
links to the chord, its chain and its errbacks taken off, so its result says
FAILURE and nobody else hears of it. Redriven, it arrives with those links on.

On the Redis result backend the chord waits in keys that live ``result_expires``;
each member that returns sets that again. So parked letters' keys are extended
when they are parked and again from time to time (``keep_groups_alive``).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from kombu.serialization import loads, prepare_accept_content

from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.errors import DeadLetterError

logger = logging.getLogger("celery_hardened.dead_letter")

#: Suffixes of the keys in which the Redis backend keeps a chord; "" is the saved group itself.
_GROUP_KEYS = ("", ".j", ".t", ".s", ".d")


def chord_group(request: Any) -> str | None:
    """The group whose chord waits for this request, or ``None``.

    Either the request itself is a member, or a later element of its chain is: the
    first link of a chain in a chord's header carries no chord of its own.
    """
    if getattr(request, "chord", None) and getattr(request, "group", None):
        return str(request.group)
    for element in getattr(request, "chain", None) or ():
        options = element.get("options") or {} if isinstance(element, dict) else {}
        if options.get("chord"):
            return str(options.get("group_id") or getattr(request, "group", None) or "") or None
    return None


def can_park(task: Any) -> bool:
    """Does the result backend keep chords the way parking needs? (Joins natively, on Redis.)"""
    return _keeps_chords(task.backend)


def _keeps_chords(backend: Any) -> bool:
    # Not imported for a look at it: the backend of an app that uses it has done so already.
    module = sys.modules.get("celery.backends.redis")
    return module is not None and isinstance(backend, module.RedisBackend)


def detach(request: Any) -> None:
    """Take the workflow's links off a request that is about to fail parked."""
    request.chord = None
    request.chain = None
    request.errbacks = None


def keep_groups_alive(app: Celery, group_ids: Iterable[str], *, seconds: float) -> int:
    """Let the chords of these groups live at least *seconds* longer; how many keys were extended.

    Raises:
        StoreUnavailableError: The result backend did not answer.
    """
    backend: Any = app.backend
    if not _keeps_chords(backend):
        return 0
    from celery_hardened.redis_connection import answered

    wanted = round(seconds * 1000)
    keys = [backend.get_key_for_group(group, suffix) for group in set(group_ids) for suffix in _GROUP_KEYS]
    with answered("extending the chords of parked letters"), backend.client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.pttl(key)
        lifetimes = pipe.execute()
        # -2: no such key (yet); -1: it lives for ever. A key that lives longer is never cut short.
        short = [key for key, left in zip(keys, lifetimes, strict=True) if 0 <= left < wanted]
        for key in short:
            pipe.pexpire(key, wanted)
        pipe.execute()
    return len(short)


def group_gone(app: Celery, letter: DeadLetter) -> str | None:
    """Why a redrive of a parked letter would be for nothing, or ``None`` if its chord still waits."""
    backend: Any = app.backend
    if not letter.parked or not letter.group_id or not _keeps_chords(backend):
        return None
    if backend.client.exists(backend.get_key_for_group(letter.group_id, ".s")):
        return None
    return (
        f"its chord (group {letter.group_id}) is no longer in the result backend, so the task would "
        f"succeed and the chord's body never run. Discard the letter, or use --force to run the task alone."
    )


def fail_parked(app: Celery, letter: DeadLetter) -> None:
    """Fail the chord of a parked letter that is about to be discarded, and fire its errbacks.

    Raises:
        DeadLetterError: Its body cannot be read with the app's ``accept_content``; the letter stays.
    """
    try:
        args, kwargs, embed = loads(
            letter.body,
            letter.content_type,
            letter.content_encoding,
            accept=prepare_accept_content(app.conf.accept_content),
        )
    except Exception as problem:
        raise DeadLetterError(
            f"letter {letter.id} is parked and was not discarded: its body cannot be read "
            f"({type(problem).__name__}), so its chord could not be told. Allow its content type "
            f"({letter.content_type}) in accept_content, or let retention drop the letter."
        ) from problem
    error = DeadLetterError(f"{letter.task} became dead letter {letter.id} ({letter.error_type}) and was discarded")
    request = Context(dict(letter.headers), args=args, kwargs=kwargs, called_directly=False, **(embed or {}))
    app.backend.mark_as_failure(letter.task_id, error, request=request, state=states.FAILURE)
    logger.warning("discarded dead letter %s: its chord was failed", letter.id, extra={"task_id": letter.task_id})
