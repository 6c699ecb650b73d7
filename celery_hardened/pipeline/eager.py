"""Eager tasks: all attempts first, then the original exception; and the message they never had."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from kombu.serialization import dumps

from celery_hardened.wire import Wire

#: The exceptions with which eager attempts of the current ``apply`` failed for good. Celery
#: hands back a picklable stand-in; the caller is to see what the task raised.
_failures: ContextVar[list[BaseException] | None] = ContextVar("hardened_eager_failures", default=None)


def apply_and_raise(apply: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """``Task.apply(throw=True)`` with retries.

    Celery's own lets the first ``Retry`` out instead of retrying.
    """
    failures: list[BaseException] = []
    token = _failures.set(failures)
    try:
        result = apply(*args, throw=False, **options)
    finally:
        _failures.reset(token)
    if result.failed():
        raise failures[-1] if failures else result.result
    return result


def remember(error: BaseException) -> None:
    """Called by the pipeline with the final error of an eager attempt."""
    failures = _failures.get()
    if failures is not None:
        failures.append(error)


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
    content_type, encoding, body = dumps(message.body, app.conf.task_serializer)
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
