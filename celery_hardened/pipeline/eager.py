"""Eager tasks that propagate: all attempts first, then the original exception."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

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
