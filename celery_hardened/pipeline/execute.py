"""Life of a task in the pool process. The order of the steps is the safety property.

::

    1. lost?      it runs elsewhere by now · twin? a redrive killed half-way may have sent two: one runs
    2. poison?    a suspect's start is written down, or it is not started at all
    3. payload    arguments that lie in the payload store are fetched (after 2: they may be what kills)
    4. claim      done → its result is replayed · busy → it comes back later · else the key is ours
                  (before it the slot of a schedule, if its message may be there twice: once.py)
                  superseded? its schedule has fired again and said that this one is not to begin: superseded.py
    5. body
    6. finish     the claim is done, with the result, and so is the slot
    7. failed:    release the claim, then retry · letter, then release the claim · come back later
                  (the letter is written before anything says FAILURE, and before the ack)
    8. close      what step 2 wrote down, the window, and the letter this run was redriven from

A first delivery of a task that succeeds touches no store at all, unless the task or its schedule asks for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from billiard import common as billiard_common
from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, Reject, Retry, TaskPredicate

from celery_hardened.dead_letter.keep import kept_as
from celery_hardened.dead_letter.letter import Reason, letter_id
from celery_hardened.dead_letter.stand_in import retry_is_sent
from celery_hardened.errors import (
    ClaimLostError,
    ConfigurationError,
    StoreUnavailableError,
    TaskExitError,
    TaskMemoryError,
)
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline import checkpoint, payload, task_log
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.burial import bury, mark
from celery_hardened.pipeline.claim import take_claim
from celery_hardened.pipeline.come_back import ComeBack, HandBack, come_back, give_back, leave_to_another
from celery_hardened.pipeline.ending import ends_as, outcome_of
from celery_hardened.pipeline.execution import lost_meanwhile, refuse_lost
from celery_hardened.pipeline.on_commit import running_body
from celery_hardened.pipeline.once import take_slot
from celery_hardened.pipeline.patience import observed
from celery_hardened.pipeline.replay import Replay
from celery_hardened.pipeline.retry import NOTES, publish_retry, verdict_on
from celery_hardened.pipeline.superseded import Superseded, refuse_superseded
from celery_hardened.pipeline.suspect import refuse_poison, refuse_twin
from celery_hardened.retry.policy import RetryIn

logger = logging.getLogger("celery_hardened.execute")


def execute(task: Any, body: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run *body* as one attempt of *task*'s current request. See the module for the steps."""
    request = task.request
    hardening = Hardening.of(task.app)
    if hardening is None:
        return body(*args, **kwargs)
    if request.called_directly or NOTES in request.__dict__:
        # A plain function call stays one. Celery calls some errbacks so, even while the request that
        # failed is still the current one.
        args, kwargs = payload.fetch(hardening, task, args, kwargs, direct=True)
        return body(*args, **kwargs)
    request.__dict__[NOTES] = {}

    attempt = Attempt(task, request, hardening)
    try:
        result = _run(attempt, body, args, kwargs)
        task_log.ended(attempt, "success" if attempt.begun is not None else "replayed", runtime=attempt.runtime)
        return result
    except Exception as error:
        outcome = outcome_of(error, acked=not task.acks_late)
        task_log.ended(attempt, outcome, runtime=attempt.runtime, error=error, delay=attempt.notes.get("delay"))
        raise
    finally:
        attempt.release()  # whatever came between two lines, such as a soft time limit: it would be renewed for ever


def _run(attempt: Attempt, body: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    task, hardening = attempt.task, attempt.hardening
    refuse_lost(task, hardening)
    refuse_twin(attempt)
    refuse_poison(attempt)
    try:
        args, kwargs = payload.fetch(hardening, task, args, kwargs)
        claim = take_slot(attempt) or take_claim(attempt, args, kwargs)
        if isinstance(claim, Replay):
            result = claim.result
        else:
            refuse_superseded(attempt)
            attempt.begin()
            attempt.begun = time.monotonic()
            task_log.started(attempt)
            with running_body():
                result = body(*args, **kwargs)
            _refuse_return(attempt)
            if claim is not None:
                claim.finish(result)
        if attempt.slot is not None:
            attempt.slot.finish(result)
    except ComeBack as wish:
        come_back(attempt, wish)
    except (ClaimLostError, HandBack) as why:
        _left(attempt, why)
    except Superseded:
        if attempt.slot is not None:
            attempt.slot.end()  # a second message of it is not to run when the later run has ended
        attempt.close(finished=True)
        raise  # its own key is released as it leaves
    except TaskPredicate as predicate:  # Ignore, Reject, Retry: the task has decided
        _ended(attempt, predicate)
        raise
    except MemoryError as error:
        # Celery re-raises a MemoryError in the worker's main process, which dies of it.
        _failed(attempt, TaskMemoryError(str(error)), cause=error)
    except Exception as error:  # noqa: BLE001 - whatever a task raises is its failure
        _failed(attempt, error)
    except BaseException as error:
        if _ends_the_process(error):
            raise
        _failed(attempt, TaskExitError(repr(error)), cause=error)
    else:
        _succeeded(attempt)
        return result


# --- how it ended -----------------------------------------------------------------------------------


def _refuse_return(attempt: Attempt) -> None:
    """An ordinary return is no success if the run had ended before."""
    ending = attempt.notes.get("ending")
    if ending is not None:
        raise ending  # handed back, or lost to another run, and the body caught it
    pending = attempt.notes.get("pending")
    if pending is not None:
        # retry(throw=False) and then an ordinary return: Celery would store SUCCESS and fire
        # the chord while the retry is on its way. The retry is what happened.
        raise pending


def _succeeded(attempt: Attempt) -> None:
    attempt.close(finished=True)
    checkpoint.close(attempt.task, finished=True)
    attempt.leave_window()
    if attempt.redriven or attempt.redelivered:
        _resolve(attempt)


def _ended(attempt: Attempt, predicate: TaskPredicate) -> None:
    """The task decided itself: Retry, Ignore or Reject."""
    if isinstance(predicate, Ignore) and attempt.claim is not None and attempt.claim.transactional:
        # What it did before it ended itself, or was replaced, is not to be rolled back with the claim.
        try:
            attempt.claim.end()
        except Exception as error:  # noqa: BLE001 - whatever the commit raised: nothing was done
            _failed(attempt, error)
    if isinstance(predicate, Ignore) and attempt.slot is not None:
        attempt.slot.end()  # whatever the task has decided, it is decided for its slot
    attempt.close(finished=isinstance(predicate, Ignore))
    checkpoint.close(attempt.task, finished=isinstance(predicate, Ignore))
    attempt.release()
    if isinstance(predicate, Retry):
        retry_is_sent(predicate)
        return
    if isinstance(predicate, Ignore) or (isinstance(predicate, Reject) and not attempt.task.acks_late):
        attempt.leave_window()  # a task that acked early is not delivered again
        payload.ended()
    if attempt.request.is_eager and isinstance(predicate, Reject) and not predicate.requeue:
        bury(attempt, predicate, "rejected")  # of a real message it is the parent that knows


def _left(attempt: Attempt, why: ClaimLostError | HandBack) -> NoReturn:
    """The run ends as if it had not been: its worker stops, or another run has its work."""
    attempt.close(finished=False)
    attempt.release()
    if isinstance(why, ClaimLostError):
        leave_to_another(attempt, why)
    give_back(attempt, why)


def _failed(attempt: Attempt, error: BaseException, cause: BaseException | None = None) -> NoReturn:
    """Retry or bury; always raises."""
    task, hardening = attempt.task, attempt.hardening
    checkpoint.close(task, finished=False)  # it may find out here that the work is another run's
    ending = attempt.notes.get("ending")
    if ending is not None:
        _left(attempt, ending)
    pending = attempt.notes.get("pending")
    if pending is not None:
        # retry(throw=False) and then an error: a second retry or a letter would double the task.
        _ended(attempt, pending)
        raise pending from error
    if cause is not None:
        error.__cause__ = cause
        error.__traceback__ = cause.__traceback__
    if lost_meanwhile(task, hardening):
        # A letter or a retry of its own would stand beside what its successor does.
        logger.warning("%s failed (%r), and its message is another worker's by now", task.name, error)
        attempt.release()
        raise ends_as(Ignore("its message is another worker's"), "lease_lost") from None
    if not task.is_hardened:
        _bury(attempt, error, _stock_reason(attempt, error))
    final = attempt.notes.get("final")
    if final is not None and final[0] is error:
        _bury(attempt, error, final[1])  # an explicit self.retry() found that there is none

    try:
        verdict = verdict_on(task, error, hardening=hardening, marks=attempt.marks)
    except ConfigurationError as problem:
        # Its classify() hook is broken. The failure itself is what the letter must show.
        logger.error("the failure of %s counts as permanent: %s", task.name, problem)
        _bury(attempt, error, "permanent")
    if isinstance(verdict, RetryIn):
        if not observed(hardening, "retry %s in %.2f s after %r", task.name, verdict.delay, error):
            _retry(attempt, error, verdict.delay)
        mark(error, "")  # the parent is not to say that it would write a letter
        raise error
    _bury(attempt, error, verdict.reason)


def _retry(attempt: Attempt, error: BaseException, delay: float) -> NoReturn:
    task = attempt.task
    attempt.notes["delay"] = delay
    # Before it is published: a quick next attempt would find its own claim, and wait for the lease.
    attempt.release()
    reason = error if isinstance(error, Exception) else None
    try:
        publish_retry(
            task,
            task.retry_as_celery,
            error=error,
            delay=delay,
            marks=attempt.marks,
            options={"exc": reason, "countdown": delay},
            hardening=attempt.hardening,
        )
    except (Retry, Reject) as ending:
        attempt.close(finished=False)
        if isinstance(ending, Retry):
            retry_is_sent(ending)
        raise ending from error
    except Exception as problem:  # noqa: BLE001 - whatever kept it from being sent
        logger.error("retry of %s could not be published, so it is a dead letter: %s", task.name, problem)
        _bury(attempt, error, "exhausted")
    raise AssertionError("Task.retry returned")


def _bury(attempt: Attempt, error: BaseException, reason: Reason) -> NoReturn:
    if attempt.claim is not None and attempt.claim.transactional:
        # Rolled back now: a letter that goes to the same database would wait for its locks.
        attempt.release()
    try:
        bury(attempt, error, reason)
    finally:
        # After the letter: were the claim free before it, a kill in between would leave neither.
        attempt.release()


def _stock_reason(attempt: Attempt, error: BaseException) -> Reason:
    """Why a contained task failed: Celery's own machinery has decided already."""
    if isinstance(error, SoftTimeLimitExceeded):
        return "timeout"
    limit = attempt.task.max_retries
    spent = limit is not None and 0 < limit <= attempt.request.retries
    return "exhausted" if spent or isinstance(error, attempt.task.MaxRetriesExceededError) else "permanent"


def _resolve(attempt: Attempt) -> None:
    """This run succeeded: close the letter it was redriven from, or that a killed run left."""
    request, marks = attempt.request, attempt.marks
    if request.is_eager:
        return
    store, ids = attempt.hardening.dead_letters, [marks.redrive[0]] if marks.redrive else []
    try:
        if attempt.redelivered:
            retries = int(attempt.wire.headers.get("retries") or 0)  # of the message: progress counts anew
            left = letter_id(str(request.id), marks.redrives, retries, "")
            ids.append(kept_as(store, left, marks.first_published, attempt.wire.body))
        for found in ids:
            store.resolve(found, by=str(request.hostname), why="a later run succeeded")
    except StoreUnavailableError as problem:
        logger.warning("dead letter of %s stays open though it succeeded: %s", attempt.task.name, problem)


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
