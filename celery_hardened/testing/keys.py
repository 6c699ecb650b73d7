"""The key that a call has."""

from __future__ import annotations

from typing import Any

from celery_hardened.dedup.decorator import options_of as deduplicate_of
from celery_hardened.idempotency.decorator import options_of as idempotent_of
from celery_hardened.key import bind
from celery_hardened.serialized import plain


def key_of(task: Any, /, *args: Any, **kwargs: Any) -> str:
    """The business key of ``task.delay(*args, **kwargs)``; two calls are the same work if it is equal.

    That of ``@idempotent``, or of ``@deduplicate`` if there is no other.

    Raises:
        TypeError: The task has neither.
        UnusableKeyError: No key can be taken from these arguments.
    """
    options = idempotent_of(task) or deduplicate_of(task)
    if options is None:
        raise TypeError(f"task {task.name!r} has neither @idempotent nor @deduplicate, and so no key")
    return options.key.digest(task.name, bind(task.name, task.run, args, kwargs), plain)
