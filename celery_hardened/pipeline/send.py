"""Life of a publish in the producer, from ``delay`` to the message. The order of the steps is the safety property.

::

    1. key        what its business key is; a call without a usable one is refused here
    2. commit     user code inside a transaction: it goes on from here after the commit
    3. window     @deduplicate: is one on its way already?
    4. payload    arguments above the threshold go to the payload store
    5. send       Celery's own send_task; the sender stamps the header (publish.py)

The seam is ``app.send_task``: ``delay``, canvas, callbacks, retries and beat all pass it; contained
tasks find nothing to do in any step. What was done in 3 and 4 is undone if 5 fails for certain.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from time import perf_counter
from typing import Any

from celery import Celery
from celery.utils import uuid

from celery_hardened.correlation.current import correlation_id
from celery_hardened.dedup.decorator import options_of as deduplication_of
from celery_hardened.dedup.policy import is_awaited
from celery_hardened.dedup.sent import nothing_was_sent
from celery_hardened.errors import UnusableKeyError
from celery_hardened.hardening import Hardening
from celery_hardened.idempotency.decorator import options_of
from celery_hardened.idempotency.policy import eta_problem
from celery_hardened.marks import HEADER, REFERENCE, Marks
from celery_hardened.pipeline import dedup, payload
from celery_hardened.pipeline.claim import check_idempotent, key_of
from celery_hardened.pipeline.on_commit import defer, deferrable, in_trace
from celery_hardened.pipeline.published import began, ended, raised
from celery_hardened.signals import task_deduplicated, tell

logger = logging.getLogger("celery_hardened.publish")

#: Seconds. A countdown below is no longer than a queue may be.
_SHORT = 600.0

#: The parameters of ``Celery.send_task`` after name, args and kwargs, which may be given by position.
_BY_POSITION = ("countdown", "eta", "task_id", "producer", "connection", "router", "result_cls", "expires")


@dataclass(frozen=True, slots=True)
class Call:
    """One publish of a task, before it is a message."""

    task: Any
    """The task, or ``None`` if this process does not know its name."""

    name: str
    args: Any
    kwargs: Any
    options: dict[str, Any]
    """Of ``send_task``; ``task_id`` is among them."""

    awaited: bool = False
    """Does somebody wait for this very task, a chord or the rest of a chain? As the caller gave it; of a task
    with ``@deduplicate``."""

    maybe_sent: bool = False
    """May its message have been sent, by an earlier publish that failed?"""

    @property
    def task_id(self) -> str:
        return str(self.options["task_id"])


def harden_sending(app: Celery, hardening: Hardening) -> None:
    """Put the producer's pipeline around ``app.send_task``."""
    stock = app.send_task

    def send_task(name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        options = {**dict(zip(_BY_POSITION, more, strict=False)), **options}
        on_commit = options.pop("on_commit", None)
        since = perf_counter()
        try:
            if hardening.settings.observe:
                return stock(name, args, kwargs, **options)
            options["task_id"] = options.get("task_id") or uuid()
            # Not app.tasks: that would bind every task of the process to an app that only sends by name.
            task = options.get("task_type") or app._tasks.get(name)
            check_options(hardening, task)
            call = with_key(Call(task, name, args, kwargs, options, _is_awaited(task, options)))
            go_on = partial(send, hardening, stock)
            transactions = deferrable(hardening, call, on_commit=on_commit)
            if not transactions:
                return go_on(call)
            waiting = defer(hardening, correlated(call), go_on, transactions)
        except BaseException as problem:
            raised(hardening, name, (args, kwargs, options), problem, since)
            raise
        ended(hardening, name, "deferred", (args, kwargs, options))
        return waiting

    send_task.__wrapped__ = stock  # type: ignore[attr-defined]  # beat asks whose it is
    app.send_task = send_task


def _is_awaited(task: Any, options: dict[str, Any]) -> bool:
    return deduplication_of(task) is not None and is_awaited(options)


def check_options(hardening: Hardening, task: Any) -> None:
    """What would stop a worker at its start is refused at the first publish too. Raises ``ConfigurationError``."""
    if task is not None and "_hardened_key_checked" not in task.__dict__:
        check_idempotent(task, hardening)
        task.__dict__["_hardened_key_checked"] = True


def with_key(call: Call) -> Call:
    """*call* with its idempotency key in its header; a worker finds one that is not there.

    Raises:
        UnusableKeyError: There is none in the arguments, and the caller is who can mend that.
    """
    if call.task is None or call.options.get("retries"):
        return call  # a retry has the header of its first publish
    try:
        key = None if REFERENCE in (call.kwargs or ()) else key_of(call.task, call.args or (), call.kwargs or {})
    except UnusableKeyError:
        if not in_trace():
            raise
        key = None  # the task before it in the workflow has done nothing wrong: let this one say so itself
    if key is not None:
        _warn_of_countdown(call)
        return replace(call, options=_with_marks(call.options, key=key, dedup=None))
    if HEADER in (call.options.get("headers") or ()):
        # Handed on from another task, whose window is not this one's.
        return replace(call, options=_with_marks(call.options, dedup=None))
    return call


def correlated(call: Call) -> Call:
    """*call* with the correlation id of where it is made in its header: it is sent elsewhere."""
    given = correlation_id()
    if given is None or call.options.get("retries"):
        return call
    marks = Marks.read(call.options.get("headers"))
    return call if marks.correlation_id else replace(call, options=_with_marks(call.options, correlation_id=given))


def _warn_of_countdown(call: Call) -> None:
    """Say once for each task that it is published with a longer countdown than its ``@idempotent`` provides for."""
    options, known = options_of(call.task), call.task.__dict__
    delay, eta = call.options.get("countdown"), call.options.get("eta")
    if isinstance(eta, datetime) and eta.tzinfo is not None:
        delay = (eta - datetime.now(timezone.utc)).total_seconds()
    if options is None or not isinstance(delay, (int, float)) or "_hardened_countdown_told" in known:
        return
    if delay < _SHORT:
        return
    problem = eta_problem(options, delay)
    if problem is not None:
        known["_hardened_countdown_told"] = True
        logger.warning("%s: %s", call.name, problem, extra={"task": call.name})


def send(hardening: Hardening, stock: Callable[..., Any], call: Call) -> Any:
    """Steps 3 to 5. Answers with the task's result, or with that of the task it would have doubled.

    Raises:
        DuplicateTaskError: One is on its way already, and the task says that this is an error.
        PayloadTooLargeError: Its arguments are above ``hardened_payload_max``.
        StoreUnavailableError: The window or the payload store did not answer. In each of the three
            cases nothing was sent.
    """
    since = perf_counter()
    token = began.set(since)
    try:
        return _send(hardening, stock, call, since)
    finally:
        began.reset(token)


def _send(hardening: Hardening, stock: Callable[..., Any], call: Call, since: float) -> Any:
    window = dedup.enter(
        hardening,
        call.task,
        call.name,
        call.args,
        call.kwargs,
        call.options,
        call.task_id,
        awaited=call.awaited,
        maybe_sent=call.maybe_sent,
    )
    if window is not None and window.refused_by is not None:
        ended(hardening, call.name, "deduplicated", (call.args, call.kwargs, call.options), since)
        tell(task_deduplicated, hardening.app, task=call.name, task_id=call.task_id, owner=window.refused_by)
        return dedup.answer(window)
    names: list[str] = []
    handled = sys.exc_info()[1]
    try:
        args, kwargs, options, names = payload.stash(
            hardening, call.name, call.args or (), call.kwargs or {}, call.options
        )
        if window is not None and window.mark is not None:
            options = _with_marks(options, dedup=window.mark)
        return stock(call.name, args, kwargs, **options)
    except BaseException as error:
        if names and nothing_was_sent(error, handled=handled):
            payload.forget(hardening, names)
        if window is not None:
            window.publish_failed(error)
        raise


def _with_marks(options: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """*options* of a first publish with *changes* in its header."""
    headers = options.get("headers") or {}
    return {**options, "headers": {**headers, HEADER: replace(Marks.read(headers), **changes).header()}}
