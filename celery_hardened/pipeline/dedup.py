"""Deduplication, where a task is published.

::

    enter           takes the key, or says who has it         before the publish, one command
    publish_failed  frees it, or keeps it for a lease         the publish raised

The key and its end travel in the message's header (the *mark*); what follows is in ``held_windows.py``.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from typing import Any

from celery_hardened.dedup.decorator import options_of
from celery_hardened.dedup.policy import Deduplicate, is_awaited
from celery_hardened.dedup.sent import nothing_was_sent
from celery_hardened.errors import DuplicateTaskError, StoreUnavailableError, UnusableKeyError
from celery_hardened.hardening import Hardening
from celery_hardened.key import bind
from celery_hardened.marks import REFERENCE, Marks
from celery_hardened.pipeline import held_windows
from celery_hardened.pipeline.windows import handed_on, renewal, told_by, ttl_of_publish, windows
from celery_hardened.serialized import plain

logger = logging.getLogger("celery_hardened.dedup")


@dataclass(slots=True, kw_only=True)
class Window:
    """What became of a publish that asked for its key."""

    hardening: Hardening
    task: Any
    key: str
    task_id: str
    policy: Deduplicate
    refused_by: str | None = None
    """Id of the task that holds the key; then nothing is to be sent. ``None``: send it."""

    mark: tuple[str, str] | None = None
    """For the message's header: the key, and until when it is held. ``None``: it was not taken."""

    maybe_sent: bool = False
    """May an earlier publish of this very task have sent its message, whatever becomes of this one?"""

    handled: BaseException | None = field(default_factory=lambda: sys.exc_info()[1])

    def publish_failed(self, error: BaseException) -> None:
        """The publish raised *error*: free the key, or keep it for a lease if it may have been sent."""
        if self.mark is None:
            return
        lease = self.hardening.settings.lease
        certain = not self.maybe_sent and nothing_was_sent(error, handled=self.handled)
        try:
            if certain:
                windows(self.hardening).leave(self.key, task_id=self.task_id)
            else:
                windows(self.hardening).hold(self.key, task_id=self.task_id, ttl=lease)
        except StoreUnavailableError as problem:
            logger.warning("deduplication key %s is freed later: %s", self.key, problem)
            renewal(self.hardening).free_later(self.key, self.task_id, after=0.0 if certain else lease)


def enter(
    hardening: Hardening,
    task: Any,
    name: str,
    args: Any,
    kwargs: Any,
    options: dict[str, Any],
    task_id: str,
    *,
    awaited: bool | None = None,
    maybe_sent: bool = False,
) -> Window | None:
    """Take the key of a task that is about to be published; ``None``: it has none, or has it already.

    Args:
        task: The registered task of *name*, or ``None``: then this process cannot know its key.
        options: As ``app.send_task`` gets them.
        awaited: Does somebody wait for this very task? ``None``: *options* say so, see ``is_awaited``.
            A publish that was deferred has got options of its own since, and must say.
        maybe_sent: An earlier publish of it failed, and its message may be there: until it is known that this one
            was sent, the key is kept for a lease.

    Raises:
        UnusableKeyError: No key can be taken from the arguments.
        StoreUnavailableError: The store does not answer, and the task says ``on_store_error="raise"``.
    """
    if options.get("retries"):
        held_windows.kept(hardening, task, options, task_id)
        return None
    policy = options_of(task)
    if policy is None or hardening.settings.observe:
        return None
    if REFERENCE in (kwargs or ()):
        # A step of a workflow, whose arguments were put away before: nobody reads them for their key.
        return None
    own = getattr(hardening.app.current_worker_task, "request", None)
    replaces = own is not None and own.id == task_id
    awaited = replaces or (is_awaited(options) if awaited is None else awaited)
    try:
        key = policy.key.digest(name, bind(name, task.run, args or (), kwargs or {}), plain)
    except UnusableKeyError as problem:
        if not awaited:
            raise
        logger.warning("sent without a deduplication key, because a workflow waits for it: %s", problem)
        return None
    window = Window(hardening=hardening, task=task, key=key, task_id=task_id, policy=policy, maybe_sent=maybe_sent)
    renewal(hardening).keep_after_all(key, task_id)
    try:
        ttl = ttl_of_publish(hardening, task, options, window=policy.window)
        told = told_by(Marks.read(own.headers)) if own is not None and replaces else None
        owner = windows(hardening).enter(key, task_id=task_id, ttl=ttl, window=policy.window, told=told)
    except StoreUnavailableError as problem:
        # It may have been taken, and the answer lost.
        if not awaited and policy.on_store_error == "raise":
            renewal(hardening).free_later(key, task_id, after=hardening.settings.lease if maybe_sent else 0.0)
            raise
        logger.warning("%s[%s] is sent without asking who has its key: %s", name, task_id, problem)
        owner = task_id
    if owner == task_id:
        window.mark = (key, policy.until)
        if own is not None and replaces and key in (Marks.read(own.headers).dedup or ()):
            handed_on(hardening).note(key, task_id)
    elif not awaited:
        window.refused_by = owner
    return window


def answer(window: Window) -> Any:
    """What a refused publish returns: the first task's ``AsyncResult``, or ``None``.

    Raises:
        DuplicateTaskError: The task says ``on_duplicate="raise"``.
    """
    owner, name = str(window.refused_by), window.task.name
    extra = {"task": name, "task_id": owner, "reason": "duplicate"}
    logger.info("%s was not sent: %s of the same key is on its way", name, owner, extra=extra)
    if window.policy.on_duplicate == "return":
        return window.task.AsyncResult(owner)
    if window.policy.on_duplicate == "raise":
        raise DuplicateTaskError(name, owner)
    return None
