"""Eager tasks: all attempts first, then the original exception; and the message they never had."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from celery.utils.saferepr import saferepr
from kombu.serialization import dumps

from celery_hardened.wire import Wire


@dataclass(slots=True)
class _Run:
    """One ``apply`` with all its attempts."""

    task_id: str
    failures: dict[str, BaseException] = field(default_factory=dict)
    """By task id, the exceptions of attempts that failed for good. Celery hands back a picklable
    stand-in; the caller is to see what the task raised."""


_run: ContextVar[_Run | None] = ContextVar("hardened_eager_run", default=None)


def apply_all(attempt: Callable[..., Any], *, task_id: str, retries: int, throw: bool) -> Any:
    """``Task.apply`` with all its attempts; if *throw*, the last one's own exception comes out.

    Celery's own lets the first ``Retry`` out if it is to throw, and asks
    ``task_eager_propagates`` again for every retry if it is not.
    """
    current = _run.get()
    if retries and current is not None and current.task_id == task_id:
        return attempt(task_id=task_id, throw=False)  # the next attempt of a run that goes on

    run = _Run(task_id)
    token = _run.set(run)
    try:
        result = attempt(task_id=task_id, throw=False)
    finally:
        _run.reset(token)
    if throw and result.failed():
        raise run.failures.get(task_id, result.result)
    return result


def remember(task_id: str, error: BaseException) -> None:
    """Called by the pipeline with the final error of an eager attempt."""
    run = _run.get()
    if run is not None:
        run.failures[task_id] = error


def wire_of(task: Any, request: Any) -> Wire:
    """Eager tasks have no message; make the one that ``delay`` would have sent."""
    app = task.app
    message = app.amqp.as_task_v2(
        request.id,
        task.name,
        request.args,
        request.kwargs,
        root_id=request.root_id,
        parent_id=request.parent_id,
        retries=request.retries,
        group_id=request.group,
        callbacks=request.callbacks,
        errbacks=request.errbacks,
        chord=request.chord,
        chain=request.chain,
        ignore_result=request.ignore_result,
    )
    try:
        content_type, encoding, body = dumps(message.body, app.conf.task_serializer)
    except Exception:  # noqa: BLE001 - apply() takes any object; the letter then shows what it looked like
        args, kwargs = message.body[0], message.body[1]
        shown = [[saferepr(one) for one in args], {str(name): saferepr(one) for name, one in kwargs.items()}, {}]
        content_type, encoding, body = dumps(shown, "json")
    info = request.delivery_info or {}
    return Wire(
        body=body.encode() if isinstance(body, str) else body,
        body_compressed=False,
        content_type=content_type,
        content_encoding=encoding,
        headers={**message.headers, **(request.headers or {})},
        properties=dict(message.properties),
        exchange=str(info.get("exchange") or ""),
        routing_key=str(info.get("routing_key") or app.conf.task_default_queue),
        delivery_tag=str(request.id),
        redelivered=False,
    )
