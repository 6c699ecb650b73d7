"""How a run ended, by the exception that it ended with.

Where the class of that does not say it (an ``Ignore`` may stand for a wait, a duplicate, a lost lease), the exception
carries the outcome itself. It travels to the worker's main process as the result does, so that both arrive or neither,
in every pool. Only a replay ends without one: see ``Metrics.note``.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, TaskPredicate

from celery_hardened.errors import TaskProcessLostError
from celery_hardened.metrics.outcome import MEANING, Outcome

PredicateT = TypeVar("PredicateT", bound=TaskPredicate)

#: Attribute of an exception, or of its class.
_ATTRIBUTE: Final = "hardened_outcome"

#: Raised by no body: how the run ended, or its process.
_NOT_RAISED: Final = (
    Ignore,
    Reject,
    Terminated,
    WorkerLostError,
    SystemExit,
    KeyboardInterrupt,
    TaskProcessLostError,
)


def ends_as(predicate: PredicateT, outcome: Outcome) -> PredicateT:
    """*predicate*, which ends its run as *outcome*."""
    setattr(predicate, _ATTRIBUTE, outcome)
    return predicate


def outcome_of(error: BaseException, *, acked: bool = False) -> Outcome:
    """How a run that raised *error* has ended, as far as that can tell.

    Args:
        acked: Its message was acked before it began, so that none can go back.
    """
    told = getattr(error, _ATTRIBUTE, None)
    if isinstance(told, str) and told in MEANING:
        return told
    if isinstance(error, Retry):
        return "retry"
    if isinstance(error, Reject):
        return "requeue" if error.requeue and not acked else "reject"
    if isinstance(error, Ignore):
        return "ignore"
    if isinstance(error, (SoftTimeLimitExceeded, TimeLimitExceeded)):
        return "timeout"
    if isinstance(error, TaskProcessLostError):
        return "poison"
    if isinstance(error, Terminated):
        return "terminated"
    if isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt)):
        return "worker_lost"
    return "failure"


def raised(error: BaseException) -> str | None:
    """Name of the class of what a body raised, of a retry that of its cause; ``None``: it has raised nothing."""
    found: Any = unwrap(error.exc) if isinstance(error, Retry) else error
    if found is None or isinstance(found, _NOT_RAISED):
        return None
    # What could not be pickled comes in a wrapper that knows the name.
    name = getattr(found, "exc_cls_name", None)
    return name if isinstance(name, str) else type(found).__name__


def unwrap(error: Any) -> Any:
    """*error* without the traceback that billiard has put around it."""
    return error.exc if isinstance(error, ExceptionWithTraceback) else error
