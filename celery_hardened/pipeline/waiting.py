"""A publish that waits for commits: who holds it, and how its failure comes out."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from billiard.exceptions import SoftTimeLimitExceeded

from celery_hardened.errors import DuplicateTaskError, PublishFailedError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.publisher import Patience, Publisher, UnsentError, named
from celery_hardened.pipeline.results import DeferredResult, Fate, forget, remember

if TYPE_CHECKING:
    from celery_hardened.pipeline.send import Call

logger = logging.getLogger("celery_hardened.publish")

Send: TypeAlias = "Callable[[Call], Any]"


class Batch:
    """The publishes that one commit sends: their failures come out of it together, after the last of them.

    Django stops at the first callback that raises, and those after it are never called.
    """

    def __init__(self, is_over: Callable[[], bool] = lambda: True) -> None:
        self.hooks: weakref.WeakSet[Hook] = weakref.WeakSet()
        """Those still to come. Weakly: a savepoint's rollback makes the transaction forget its own."""
        self.unsent: list[UnsentError] = []
        self.patience: Patience | None = None
        self._is_over = is_over

    def finish(self) -> None:
        """Raise what has gone wrong, if no publish is left to be tried.

        Raises:
            PublishFailedError: The broker did not take some of them.
            SoftTimeLimitExceeded: Of the task whose commit this is; it came while they were sent.
        """
        if not self.unsent or (self.hooks and self._is_over()):
            return
        unsent, self.unsent, self.patience = self.unsent, [], None
        for one in unsent:
            if one.limit is not None:
                raise one.limit  # it ends the task, whatever else has gone wrong
        raise PublishFailedError([one.task for one in unsent], unsent[0].problem) from unsent[0].__cause__


class Hook:
    """What one transaction holds of a waiting publish, and calls after its commit."""

    __slots__ = ("__weakref__", "batch", "waiting")

    def __init__(self, waiting: Waiting, batch: Batch) -> None:
        self.waiting = waiting
        self.batch = batch
        batch.hooks.add(self)

    def __call__(self) -> None:
        """Send the task, if this was the last commit it waited for.

        Raises:
            PublishFailedError, SoftTimeLimitExceeded: See ``Batch.finish``.
        """
        self.batch.hooks.discard(self)
        try:
            self.waiting.committed(self)
        except UnsentError as problem:
            self.batch.unsent.append(problem)
        except SoftTimeLimitExceeded as limit:  # beside the publish itself, which writes a letter; the others go on
            logger.critical("LOST, or sent: interrupted after the commit, around the publish of %s", self)
            self.batch.unsent.append(UnsentError(named(self.waiting.call), repr(limit), limit))
        except BaseException:
            left = [str(hook) for hook in (self, *self.batch.hooks)]
            logger.critical("LOST: interrupted after the commit, before these were sent: %s", ", ".join(left))
            raise
        self.batch.finish()

    def __repr__(self) -> str:
        return f"<publish {named(self.waiting.call)} on commit>"


class Waiting:
    """One publish, from the call until it is sent or forgotten. Its hooks hold it, and the transactions hold them."""

    def __init__(self, hardening: Hardening, call: Call, send: Send) -> None:
        self.hardening = hardening
        self.call = call
        self.fate = Fate(call.name, call.options["task_id"])
        self._send = send

    def hooked(self, hook: Hook) -> None:
        self.fate.hooks.add(weakref.ref(hook))

    def committed(self, hook: Hook) -> None:
        """*hook*'s transaction has committed.

        Raises:
            UnsentError: It was the last, and the broker did not take the task.
        """
        mine, fate = weakref.ref(hook), self.fate
        if mine not in fate.hooks:
            return  # called a second time, as a test may do
        fate.hooks.discard(mine)
        if fate.hooks:
            return
        forget(fate.task_id)  # whatever comes now: a redrive may send it, and then its result can be waited for
        batch = hook.batch
        if batch.patience is None:
            batch.patience = Patience(self.hardening.settings.publish_timeout)
        try:
            result = Publisher(self.hardening).publish(self.call, self._send, batch.patience)
        except DuplicateTaskError as problem:
            self._refused(problem)
        except UnsentError as problem:
            fate.problem = PublishFailedError([problem.task], problem.problem)
            raise
        else:
            if result is None:  # @deduplicate(on_duplicate="drop")
                self._refused(DuplicateTaskError(self.call.name, "the log of celery_hardened.dedup has its id"))
                return
            fate.sent = True
            fate.task_id = result.id  # with on_duplicate="return" that of the task that was first

    def _refused(self, problem: DuplicateTaskError) -> None:
        """A task of the same key was first. Nobody is left to be raised at but who asks for the result."""
        self.fate.problem = problem
        extra = {"task": self.call.name, "task_id": self.fate.task_id, "reason": "duplicate"}
        logger.warning("after its commit %s", problem, extra=extra)

    def result(self) -> DeferredResult:
        """What the caller gets."""
        remember(self.fate)
        call = self.call
        backend = call.task.backend if call.task is not None else None
        ignored = bool(call.options.get("ignore_result"))
        return DeferredResult(self.fate, app=self.hardening.app, backend=backend, ignored=ignored)
