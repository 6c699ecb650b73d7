"""One record when a task starts and one when its delivery ends, with fields; see ``logs/fields.py``.

In the pool process where the end is known there, in the worker's main process where only that knows it: a lost child,
a hard limit, a revoke. Each end is logged once: ``ended`` leaves word in the request's notes, and the exception that
crosses carries it on.
With ``hardened_task_logs`` they stand for Celery's own lines, which ``celery_lines.py`` drops.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Final

from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from celery_hardened.correlation.current import is_safe
from celery_hardened.dead_letter import stand_in
from celery_hardened.hardening import Hardening
from celery_hardened.logs import log_args
from celery_hardened.logs.fields import ARGUMENT
from celery_hardened.marks import HEADER, Marks, published_in
from celery_hardened.metrics.outcome import FAILED, Outcome
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.ending import raised
from celery_hardened.pipeline.letters import WIRE

logger = logging.getLogger("celery_hardened.task")

_LEVEL: Final[dict[Outcome, int]] = {
    "failure": logging.ERROR,
    "timeout": logging.ERROR,
    "poison": logging.ERROR,
    "unknown": logging.ERROR,
    "malformed": logging.ERROR,
    "worker_lost": logging.ERROR,
    "lease_lost": logging.WARNING,
    "reject": logging.WARNING,
    "expired": logging.WARNING,
}

#: Ends that no pool process can tell of.
_OF_THE_PARENT: Final[frozenset[Outcome]] = frozenset(
    {"worker_lost", "revoked", "expired", "terminated", "unknown", "malformed"}
)

_AROUND_THE_BODY: Final = ("celery_hardened.pipeline", "celery.app.trace")

#: In the request's notes: the fields of its run, and the outcome that was logged.
FIELDS: Final = "log_fields"
LOGGED: Final = "logged"


def started(attempt: Attempt) -> None:
    """A body is about to begin."""
    if not (logger.isEnabledFor(logging.INFO) and ours(attempt.hardening)):
        return
    fields = _fields_of(attempt)
    wait = _waited(attempt.request, time.time())
    if wait is not None:
        fields["wait_ms"] = wait
    _say(logging.INFO, "%s[%s] starts", fields["task"], fields["task_id"], extra=fields)


def ended(
    attempt: Attempt,
    outcome: Outcome,
    *,
    runtime: float | None,
    error: BaseException | None = None,
    delay: float | None = None,
) -> None:
    """A run has ended, as the pool process knows it. The first word on a run counts; a second one is not logged.

    Args:
        runtime: Seconds of the body; ``None`` if it did not begin.

        error: What it ended with. Of a failure it is logged with its traceback.

        delay: Seconds until it is tried again, of ``retry`` and ``waited``.
    """
    if LOGGED in attempt.notes or not ours(attempt.hardening):
        return
    attempt.notes[LOGGED] = outcome
    if error is not None:
        stand_in.end_is_logged()
    level = _level(attempt.task, outcome, error)
    if logger.isEnabledFor(level):
        _log(level, _fields_of(attempt), outcome, runtime, error, delay)


def ended_in_parent(
    request: Any, outcome: Outcome, *, runtime: float | None, error: BaseException | None = None
) -> None:
    """A delivery has ended, as the worker's main process knows it. To be called for each one that is no success:
    what a pool process has logged is not logged again.

    Args:
        request: The ``HardenedRequest``.

        runtime: Seconds since it was accepted; ``None`` if it never was.
    """
    if not _only_here(outcome, error):
        return
    level = _level(request.task, outcome, error)
    if logger.isEnabledFor(level) and ours(request._hardening):
        _log(level, _fields_of_request(request), outcome, runtime, error, None)


def ended_unread(
    hardening: Hardening, outcome: Outcome, *, task: str, task_id: str, queue: str, worker: str, error: BaseException
) -> None:
    """A message of which the worker can make no task has ended. What *error* says may quote the message: only its
    class is logged."""
    if logger.isEnabledFor(logging.ERROR) and ours(hardening):
        kind = type(error).__name__
        fields = {"task": task, "task_id": task_id, "queue": queue, "worker": worker, "outcome": outcome}
        _say(logging.ERROR, "%s[%s] %s: %s", task, task_id, outcome, kind, extra={**fields, "exc_type": kind})


def ours(hardening: Hardening) -> bool:
    """Are these records written, and Celery's lines dropped? Not in a dry run."""
    settings = hardening.settings
    return settings.task_logs and not settings.observe


def _level(task: Any, outcome: Outcome, error: BaseException | None) -> int:
    throws = getattr(task, "throws", ())
    if outcome == "failure" and throws and isinstance(error, throws):
        return logging.INFO  # the task says that it may: Celery logs it so
    return _LEVEL.get(outcome, logging.INFO)


def _log(
    level: int,
    fields: dict[str, Any],
    outcome: Outcome,
    runtime: float | None,
    error: BaseException | None,
    delay: float | None,
) -> None:
    fields = {**fields, "outcome": outcome}
    text, words = "%s[%s] %s", [fields["task"], fields["task_id"], outcome]
    if runtime is not None:
        fields["runtime_ms"] = round(runtime * 1000, 3)
        text += " in %.3f s"
        words.append(runtime)
    if delay is not None:
        fields["retry_in_ms"] = round(delay * 1000)
        text += ", again in %.1f s"
        words.append(delay)
    traced = None
    shown = _told(outcome, error)
    if shown is not None:
        fields["exc_type"] = raised(shown) or type(shown).__name__
        text += ": %s"
        words.append(fields["exc_type"])
        if level >= logging.ERROR or logger.isEnabledFor(logging.DEBUG):
            traced = (type(shown), shown, _from_the_body(shown.__traceback__))
    _say(level, text, *words, exc_info=traced, extra=fields)


def _say(level: int, text: str, *words: object, **options: Any) -> None:
    """Log, and let no filter of the project's that raises end the run: logging contains what handlers raise, and not
    what filters do. It is told as logging tells of handlers."""
    try:
        logger.log(level, text, *words, **options)
    except SoftTimeLimitExceeded:  # of the task, whose run may have begun
        raise
    except Exception:  # noqa: BLE001 - whatever it is, the work goes on
        if logging.raiseExceptions and sys.stderr:
            sys.stderr.write(f"--- Logging error: a filter raised, a record of {logger.name} is lost ---\n")
            traceback.print_exc(file=sys.stderr)


def _told(outcome: Outcome, error: BaseException | None) -> BaseException | None:
    """The exception that says why it ended so: not Celery's ``Ignore`` and ``Reject``, which say how."""
    if outcome == "retry":
        cause = getattr(error, "exc", None)
        return cause if isinstance(cause, BaseException) else None
    return error if outcome in FAILED else None


def _from_the_body(trace: TracebackType | None) -> TracebackType | None:
    """*trace* without the frames that lead to the body, which are the same for every task."""
    while trace is not None and trace.tb_next is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith(_AROUND_THE_BODY):
            break
        trace = trace.tb_next
    return trace


def _only_here(outcome: Outcome, error: BaseException | None) -> bool:
    """Has no pool process logged this end?"""
    if outcome in _OF_THE_PARENT or error is None or isinstance(error, TimeLimitExceeded):
        return True
    return outcome in ("failure", "timeout", "poison") and not stand_in.is_logged(error)


# --- what is known of it -----------------------------------------------------------------------------------


def _fields_of(attempt: Attempt) -> dict[str, Any]:
    """The fields of both records of a run; made once."""
    made: dict[str, Any] | None = attempt.notes.get(FIELDS)
    if made is not None:
        return made
    task, request = attempt.task, attempt.request
    fields = {"task": task.name, "task_id": request.id, "attempt": request.retries, "worker": request.hostname}
    packed = (request.properties or {}).get(WIRE)
    info = request.delivery_info or {}
    queue = packed[8] if isinstance(packed, tuple) else ""
    fields["queue"] = queue or info.get("routing_key") or ""
    _add_headers(fields, request.headers or {}, request.root_id or request.id)
    if getattr(task, "log_args", None):
        _add_arguments(fields, task, request.args or (), request.kwargs or {})
    attempt.notes[FIELDS] = fields
    return fields


def _fields_of_request(request: Any) -> dict[str, Any]:
    wire = request._wire
    fields = {
        "task": request.name,
        "task_id": request.id,
        "attempt": request._request_dict.get("retries") or 0,
        "worker": str(request._hostname),
        "queue": wire.queue or wire.routing_key,
    }
    _add_headers(fields, wire.headers, request.root_id or request.id)
    _add_arguments(fields, request.task, request._args or (), request._kwargs or {})
    return fields


def _add_headers(fields: dict[str, Any], headers: Any, root: Any) -> None:
    if root != fields["task_id"]:
        fields["root_id"] = root
    raw = headers.get(HEADER)
    correlation = raw.get("correlation_id") if isinstance(raw, dict) else None
    fields["correlation_id"] = correlation if is_safe(correlation) else root
    if isinstance(raw, dict) and "schedule" in raw:
        marks = Marks.read(headers)
        fields["schedule"] = marks.schedule
        if marks.slot is not None:
            fields["slot"] = datetime.fromtimestamp(marks.slot, timezone.utc).isoformat()
    if "traceparent" in headers and is_safe(headers["traceparent"]):
        fields["traceparent"] = headers["traceparent"]


def _add_arguments(fields: dict[str, Any], task: Any, args: Any, kwargs: Any) -> None:
    for name, value in log_args(task, args, kwargs).items():
        fields[ARGUMENT + name] = value


def _waited(request: Any, now: float) -> float | None:
    """Milliseconds from when it was published, or due, until *now*; ``None`` if its message does not say."""
    since = published_in(request.headers)
    if since is None:
        return None
    if request.eta:
        since = max(since, _instant(request.eta))
    return round(max(0.0, now - since) * 1000, 3)


def _instant(eta: Any) -> float:
    """The ``eta`` of a message as seconds since the epoch; 0 if it is none."""
    try:
        then = datetime.fromisoformat(eta.replace("Z", "+00:00")) if isinstance(eta, str) else eta
        return float((then if then.tzinfo else then.replace(tzinfo=timezone.utc)).timestamp())
    except (AttributeError, TypeError, ValueError, OverflowError):
        return 0.0
