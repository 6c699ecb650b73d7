"""What a pool process tells its parent of a failure: nothing that runs the task's own code there.

An exception crosses to the worker's main process by pickle, and is made anew there. If that
fails (its module was only ever imported by the task, its ``__init__`` asks for the current
task, a deploy took its class away) the main process dies of it, with all its children; the
message comes back and kills the next. Celery tries the round trip before, but in the process
where it works. So only exceptions of Celery and Python, with plain arguments, cross as they
are; Celery's own stand-in for unpicklable ones crosses in place of any other. Result, hooks
and signals are made before, of the original.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from billiard import current_process
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject, Retry
from celery.states import RETRY
from celery.utils.saferepr import saferepr
from celery.utils.serialization import UnpickleableExceptionWrapper

from celery_hardened.dead_letter.describe import describe

logger = logging.getLogger("celery_hardened.execute")

_FRAMEWORK = frozenset({"builtins", "amqp", "billiard", "celery", "celery_hardened", "kombu", "vine"})
_PLAIN = (str, bytes, int, float, bool, type(None))

#: Attribute of an exception whose end the pool process has logged.
_LOGGED: Final = "hardened_logged"

#: Exceptions in the arguments of exceptions that are looked at.
_DEPTH = 4


#: The retry that the current attempt has published. Whatever goes wrong after that (the result
#: backend, an on_retry hook) is no failure of the task: it runs again, and its message is done.
_sent: ContextVar[Retry | None] = ContextVar("hardened_sent_retry", default=None)

#: Has the current attempt's end been logged? By then it is not known what will cross: where Celery finds that the
#: exception cannot be pickled, it makes another one, which has none of its attributes.
_logged: ContextVar[bool] = ContextVar("hardened_logged", default=False)


def retry_is_sent(retry: Retry) -> None:
    """Called by the pipeline as soon as the next attempt is published."""
    _sent.set(retry)


def end_is_logged() -> None:
    """Called by the pipeline in the pool process: the parent is not to log it again."""
    _logged.set(True)


def is_logged(error: BaseException) -> bool:
    """Has the pool process logged the end of which *error* tells the parent?"""
    return getattr(error, "__dict__", {}).get(_LOGGED) is True


def tracing(trace: Callable[..., Any]) -> Callable[..., Any]:
    """*trace* (``Task.__trace__``), whose failures the parent can take."""

    def trace_for_parent(*args: Any, **options: Any) -> Any:
        # (returned, info, runtime, text); there is an info only where it did not succeed.
        token, logged_before = _sent.set(None), _logged.set(False)
        try:
            traced = trace(*args, **options)
        except Exception:
            retry = _sent.get()
            if retry is None:
                raise
            logger.exception("a retry is on its way; what was to be done besides failed")
            traced = trace_ok_t(ExceptionInfo((Retry, retry, retry.__traceback__)), TraceInfo(RETRY, retry), 0.0, None)
        else:
            retry = _sent.get()
            if retry is not None and traced[1] is not None and isinstance(traced[0], ExceptionInfo):
                traced[0].type, traced[0].exception = Retry, retry
        finally:
            _sent.reset(token)
            logged = _logged.get()
            _logged.reset(logged_before)
        if traced[1] is not None and isinstance(traced[0], ExceptionInfo) and current_process()._name != "MainProcess":
            _make_plain(traced[0])
        if logged and traced[1] is not None and isinstance(traced[0], ExceptionInfo):
            _note_logged(traced[0].exception)
        return traced

    return trace_for_parent


def _note_logged(error: Any) -> None:
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    # Not by setattr: an exception may be frozen. One without a __dict__ of its own is logged again.
    getattr(error, "__dict__", {})[_LOGGED] = True


def _make_plain(info: Any) -> None:
    wrapped = isinstance(info.exception, ExceptionWithTraceback)
    error = info.exception.exc if wrapped else info.exception
    if _is_plain(error):
        return
    plain = _predicate(error) or _stand_in(error)
    info.type = type(plain)
    info.exception = ExceptionWithTraceback(plain, info.traceback) if wrapped else plain


def _predicate(error: Any) -> BaseException | None:
    """Celery's words to the parent stay what they are, whatever was subclassed from them or put into them."""
    if isinstance(error, Retry):
        cause = error.exc if error.exc is None or _is_plain(error.exc) else _stand_in(error.exc)
        return Retry(_shown(error.message), cause, error.when)  # type: ignore[no-any-return]
    if isinstance(error, Reject):
        return Reject(_shown(error.reason), error.requeue)  # type: ignore[no-any-return]
    return Ignore() if isinstance(error, Ignore) else None


def _is_plain(value: object, depth: int = _DEPTH) -> bool:
    """Can *value* be made anew in any process that has Celery?"""
    if type(value) in _PLAIN:
        return True
    if depth == 0:
        return False
    if type(value) in (tuple, list):
        return all(_is_plain(one, depth - 1) for one in value)  # type: ignore[attr-defined]
    if not isinstance(value, BaseException) or type(value).__module__.partition(".")[0] not in _FRAMEWORK:
        return False
    return all(_is_plain(one, depth - 1) for one in (*value.args, *vars(value).values()))


def _stand_in(error: BaseException) -> BaseException:
    cls = type(error)
    if isinstance(error, UnpickleableExceptionWrapper):
        # One of Celery's own, made where the arguments could still be rebuilt.
        named = (error.exc_module, error.exc_cls_name, _shown(error.exc_args), error.text)
    else:
        arguments = tuple(_shown(one) for one in BaseException.args.__get__(error))  # type: ignore[attr-defined]
        named = (cls.__module__, cls.__name__, arguments, describe(error).message)
    stand_in: BaseException = UnpickleableExceptionWrapper(*named)
    written = getattr(error, "__dict__", {}).get("hardened_letter")
    if isinstance(written, str):
        stand_in.hardened_letter = written  # type: ignore[attr-defined] # the parent is not to write it again
    return stand_in


def _shown(value: Any) -> Any:
    return value if _is_plain(value) else saferepr(value)
