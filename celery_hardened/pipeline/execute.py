"""Life of a task in the pool process. The order of the steps is the safety property.

::

    1. lost?      it runs elsewhere by now · twin? a redrive killed half-way may have sent two: one runs
    2. poison?    a suspect's start is written down, or it is not started at all
    3. body
    4. failed:    retry · dead letter
                  (the letter is written before anything says FAILURE, and before the ack)
    5. close      what step 2 wrote down, and the letter this run was redriven from

A first delivery of a task that succeeds touches no store at all.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn
from uuid import uuid4

from billiard import common as billiard_common
from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, Reject, Retry, TaskPredicate

from celery_hardened.dead_letter.keep import keep, kept_as
from celery_hardened.dead_letter.letter import Reason, letter_id
from celery_hardened.dead_letter.parking import chord_group
from celery_hardened.dead_letter.stand_in import retry_is_sent
from celery_hardened.errors import (
    ConfigurationError,
    StoreUnavailableError,
    TaskExitError,
    TaskMemoryError,
    TaskProcessLostError,
)
from celery_hardened.hardening import Hardening
from celery_hardened.logs import log_args
from celery_hardened.marks import Marks, deaths_in, is_redriven
from celery_hardened.pipeline import eager
from celery_hardened.pipeline.execution import refuse_lost
from celery_hardened.pipeline.letters import (
    ALONE,
    START,
    WIRE,
    letter_for,
    may_park,
    observed,
    park,
    patiently,
    work_of,
    write,
)
from celery_hardened.pipeline.retry import NOTES, publish_retry, verdict_on
from celery_hardened.poison.contract import Start
from celery_hardened.poison.policy import is_suspect, judge
from celery_hardened.retry.policy import RetryIn
from celery_hardened.wire import Wire, unpack

logger = logging.getLogger("celery_hardened.execute")


def execute(task: Any, body: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run *body* as one attempt of *task*'s current request. See the module for the steps."""
    request = task.request
    if request.called_directly or NOTES in request.__dict__:
        return body(*args, **kwargs)  # a plain function call stays one
    request.__dict__[NOTES] = {}
    hardening = Hardening.of(task.app)
    if hardening is None:
        return body(*args, **kwargs)

    attempt = _Attempt(task, request, hardening)
    refuse_lost(task, hardening)
    attempt.refuse_twin()
    attempt.refuse_poison()
    try:
        result = body(*args, **kwargs)
    except TaskPredicate as predicate:  # Ignore, Reject, Retry: the task has decided
        attempt.ended(predicate)
        raise
    except MemoryError as error:
        # Celery re-raises a MemoryError in the worker's main process, which dies of it.
        attempt.failed(TaskMemoryError(str(error)), cause=error)
    except Exception as error:  # noqa: BLE001 - whatever a task raises is its failure
        attempt.failed(error)
    except BaseException as error:
        if _ends_the_process(error):
            raise
        attempt.failed(TaskExitError(repr(error)), cause=error)
    else:
        attempt.succeeded()
        return result


class _Attempt:
    """One attempt in the pool process, from its first check to its end."""

    def __init__(self, task: Any, request: Any, hardening: Hardening) -> None:
        self.task = task
        self.request = request
        self.hardening = hardening
        self.notes: dict[str, Any] = request.__dict__[NOTES]
        self.redelivered = bool((request.delivery_info or {}).get("redelivered"))
        self.redriven = not request.is_eager and is_redriven(request.headers)
        self.suspect = not request.is_eager and is_suspect(
            redelivered=self.redelivered, deaths=deaths_in(request.headers), early_ack=not task.acks_late
        )
        self.opened = False

    # --- before the body -------------------------------------------------------------------

    def refuse_twin(self) -> None:
        """A redriven message runs only if its letter's token is still free, or its own."""
        if not self.redriven or self.marks.redrive is None:
            return
        letter, token = self.marks.redrive
        try:
            accepted = patiently(self.hardening, lambda: self.hardening.dead_letters.accept_start(letter, token=token))
        except StoreUnavailableError as problem:
            if self.task.acks_late:
                # Not knowing whether a twin runs, it must come back: running could double it.
                logger.warning("redriven message of %s goes back: %s", self.task.name, problem)
                raise Reject(problem, requeue=True) from problem
            # Its message is acked already: it runs now, perhaps twice, or never.
            logger.warning("redriven message of %s runs unchecked: %s", self.task.name, problem)
            return
        if not accepted:
            logger.warning("another message of dead letter %s is running; this twin ends here", letter)
            raise Ignore(f"twin of a redrive of {letter}")

    def refuse_poison(self) -> None:
        """Write a suspect's start down; one that has killed enough is not started."""
        if not self.suspect or observed(self.hardening, "record the start of suspect %s", self.task.name):
            return
        limit = self.hardening.settings.max_worker_deaths
        alone = bool((self.request.properties or {}).get(ALONE))
        try:
            record = self.hardening.deaths.open_start(self.start, redelivered=self.redelivered, alone=alone)
        except StoreUnavailableError as problem:
            # Fail open: an outage of the store must not stop healthy work, and a message
            # that kills now is counted by the parent, or at its next return.
            logger.warning("start of suspect %s is not recorded: %s", self.task.name, problem)
            return
        self.opened = True
        self.marks = replace(self.marks, deaths=max(self.marks.deaths, record.deaths))
        if judge(record, limit=limit) == "poison":
            lost = TaskProcessLostError(self.task.name, record.deaths, limit, "its worker died while it ran")
            self._bury(lost, "poison", deaths=record.deaths)

    # --- after the body ----------------------------------------------------------------------

    def succeeded(self) -> None:
        pending = self.notes.get("pending")
        if pending is not None:
            # retry(throw=False) and then an ordinary return: Celery would store SUCCESS and fire
            # the chord while the retry is on its way. The retry is what happened.
            self.ended(pending)
            raise pending
        self._close(finished=True)
        if self.redriven or self.redelivered:
            self._resolve()

    def ended(self, predicate: TaskPredicate) -> None:
        """The task decided itself: Retry, Ignore or Reject."""
        self._close(finished=isinstance(predicate, Ignore))
        if isinstance(predicate, Retry):
            retry_is_sent(predicate)
        if self.request.is_eager and isinstance(predicate, Reject) and not predicate.requeue:
            self._bury(predicate, "rejected")  # of a real message it is the parent that knows

    def failed(self, error: BaseException, cause: BaseException | None = None) -> NoReturn:
        """Retry or bury; always raises."""
        pending = self.notes.get("pending")
        if pending is not None:
            # retry(throw=False) and then an error: a second retry or a letter would double the task.
            self.ended(pending)
            raise pending from error
        if cause is not None:
            error.__cause__ = cause
            error.__traceback__ = cause.__traceback__
        if not self.task.is_hardened:
            self._bury(error, self._stock_reason(error))
        final = self.notes.get("final")
        if final is not None and final[0] is error:
            self._bury(error, final[1])  # an explicit self.retry() found that there is none

        try:
            verdict = verdict_on(self.task, error, hardening=self.hardening, marks=self.marks)
        except ConfigurationError as problem:
            # Its classify() hook is broken. The failure itself is what the letter must show.
            logger.error("the failure of %s counts as permanent: %s", self.task.name, problem)
            self._bury(error, "permanent")
        if isinstance(verdict, RetryIn):
            if not observed(self.hardening, "retry %s in %.2f s after %r", self.task.name, verdict.delay, error):
                self._retry(error, verdict.delay)
            _mark(error, "")  # the parent is not to say that it would write a letter
            raise error
        self._bury(error, verdict.reason)

    def _retry(self, error: BaseException, delay: float) -> NoReturn:
        reason = error if isinstance(error, Exception) else None
        try:
            publish_retry(
                self.task,
                self.task.retry_as_celery,
                error=error,
                delay=delay,
                marks=self.marks,
                options={"exc": reason, "countdown": delay},
                hardening=self.hardening,
            )
        except (Retry, Reject) as ending:
            self._close(finished=False)
            if isinstance(ending, Retry):
                retry_is_sent(ending)
            raise ending from error
        except Exception as problem:  # noqa: BLE001 - whatever kept it from being sent
            logger.error("retry of %s could not be published, so it is a dead letter: %s", self.task.name, problem)
            self._bury(error, "exhausted")
        raise AssertionError("Task.retry returned")

    def _stock_reason(self, error: BaseException) -> Reason:
        """Why a contained task failed: Celery's own machinery has decided already."""
        if isinstance(error, SoftTimeLimitExceeded):
            return "timeout"
        limit = self.task.max_retries
        spent = limit is not None and 0 < limit <= self.request.retries
        return "exhausted" if spent or isinstance(error, self.task.MaxRetriesExceededError) else "permanent"

    def _bury(self, error: BaseException, reason: Reason, *, deaths: int | None = None) -> NoReturn:
        """Write the letter, park what belongs to a chord, and let the failure take its course."""
        if observed(self.hardening, "write a dead letter of %s: %s (%r)", self.task.name, reason, error):
            _mark(error, "")  # nor is the parent to say it again
            raise error
        parked = not self.request.is_eager and may_park(self.hardening, self.task, self.request)
        letter = letter_for(
            self.hardening,
            self.wire,
            reason=reason,
            error=error,
            worker=str(self.request.hostname),
            queue=self._queue,
            shown=log_args(self.task, self.request.args or (), self.request.kwargs or {}),
            deaths=deaths if deaths is not None else self.marks.deaths,
            max_age=getattr(self.task, "dead_letter_max_age", None),
            parked=parked,
            group_id=chord_group(self.request),
        )
        if self.request.is_eager:
            keep(self.hardening.eager_dead_letters, letter)
            eager.remember(self.request.id, error)
            raise error
        try:
            patiently(self.hardening, lambda: write(self.hardening, letter))
        except StoreUnavailableError as problem:
            self._unwritten(error, problem)
        self._close(finished=True)
        if parked:
            park(self.hardening, self.request, letter)
        # Tells the parent that there is a letter: it writes one for whatever did not pass here.
        _mark(error, letter.id)
        raise error

    def _unwritten(self, error: BaseException, problem: StoreUnavailableError) -> NoReturn:
        """The letter could not be written: the message must not be acked."""
        if self.task.acks_late:
            logger.error("no dead letter for %s, its message goes back: %s", self.task.name, problem)
            raise Reject(problem, requeue=True) from error
        logger.critical(
            "LOST dead letter: %s acks early, so its message is gone, and its letter could not be written: %s",
            self.task.name,
            problem,
            extra={"task": self.task.name, "task_id": self.request.id},
        )
        raise error

    # --- what it needs ---------------------------------------------------------------------------

    @cached_property
    def marks(self) -> Marks:
        return Marks.read(self.request.headers)

    @cached_property
    def wire(self) -> Wire:
        """The message as it arrived; the parent sent it along (see ``letters.WIRE``)."""
        found = (self.request.properties or {}).get(WIRE)
        if isinstance(found, tuple):
            return unpack(found)
        return eager.wire_of(self.task, self.request)

    @cached_property
    def start(self) -> Start:
        """This start, under the token the parent gave it."""
        work = work_of(self.wire, self.marks.key)
        token = (self.request.properties or {}).get(START) or uuid4().hex
        return Start(work, str(self.request.id), token, self.marks.deaths)

    @property
    def _queue(self) -> str:
        return self.wire.queue or self.wire.routing_key

    def _close(self, *, finished: bool) -> None:
        if not self.opened:
            return
        self.opened = False
        try:
            self.hardening.deaths.close_start(self.start, finished=finished)
        except StoreUnavailableError as problem:
            logger.warning("end of suspect %s is not recorded: %s", self.task.name, problem)

    def _resolve(self) -> None:
        """This run succeeded: close the letter it was redriven from, or that a killed run left."""
        if self.request.is_eager:
            return
        store, ids = self.hardening.dead_letters, [self.marks.redrive[0]] if self.marks.redrive else []
        try:
            if self.redelivered:
                left = letter_id(str(self.request.id), self.marks.redrives, self.request.retries, "")
                ids.append(kept_as(store, left, self.marks.first_published, self.wire.body))
            for found in ids:
                store.resolve(found, by=str(self.request.hostname), why="a later run succeeded")
        except StoreUnavailableError as problem:
            logger.warning("dead letter of %s stays open though it succeeded: %s", self.task.name, problem)


def _ends_the_process(error: BaseException) -> bool:
    """Is this BaseException meant for the process (signals, greenlets, shutdown), not the task's own?"""
    if type(error) is SystemExit:
        # billiard raises SystemExit from its SIGTERM signal: then the child is to go.
        return bool(billiard_common._should_have_exited[0])
    if isinstance(error, GeneratorExit) or type(error).__name__ == "BaseExceptionGroup":
        return False  # no signal and no pool raises these
    return type(error).__module__.partition(".")[0] in {
        "builtins",
        "celery",
        "billiard",
        "gevent",
        "eventlet",
        "greenlet",
    }


def _mark(error: BaseException, letter: str) -> None:
    try:
        error.hardened_letter = letter  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        # No __dict__: the parent will write it again, under the same id, which changes nothing.
        logger.debug("%s takes no attribute", type(error).__name__)
