"""The correlation id: what a web request, its tasks and all that they start have in common in the logs.

A message carries it in our header. Published under ``with correlate(…)``, or in a request of one of the middlewares
here, it is that one's; published by a task, that task's; else a task's root id stands for it, and nothing is sent.
A retry, a redrive and a replaced task keep theirs; a schedule's fire begins a new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final
from uuid import uuid4

from celery._state import get_current_task

from celery_hardened.marks import HEADER

#: Longest id that is taken from outside.
LONGEST: Final = 128

#: What an id may be made of: nothing that ends a line, quotes, or colours a terminal.
_SAFE: Final = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}\Z")

_given: ContextVar[str | None] = ContextVar("hardened_correlation", default=None)


def correlation_id() -> str | None:
    """The id of what runs here: that of ``correlate``, else the current task's; ``None`` outside of both."""
    given = _given.get()
    if given is not None:
        return given
    task = get_current_task()
    if task is None:
        return None
    return of_request(task.request)


def of_request(request: Any) -> str | None:
    """The id of a task's *request*: its message's, else its root id."""
    raw = (request.headers or {}).get(HEADER)
    sent = raw.get("correlation_id") if isinstance(raw, Mapping) else None
    if is_safe(sent):
        return str(sent)
    root = request.root_id or request.id
    return root if is_safe(root) else None


@contextmanager
def correlate(name: str | None = None) -> Iterator[str]:
    """Give all that is published inside the id *name*; a new one without.

    Raises:
        ValueError: *name* is longer than 128 characters, or has others than letters, digits and ``._:/+=@~-``.
    """
    if name is not None and not is_safe(name):
        raise ValueError(f"a correlation id has 1 to {LONGEST} letters, digits and ._:/+=@~- : {name!r:.60}")
    chosen = name if name is not None else new_id()
    token = _given.set(chosen)
    try:
        yield chosen
    finally:
        _given.reset(token)


def give(name: str) -> None:
    """Give what is published in this context, to its end, the id *name*."""
    _given.set(name)


def new_id() -> str:
    """An id that nobody has."""
    return uuid4().hex


def is_safe(value: Any) -> bool:
    """May *value* be an id, and be printed as it is?"""
    return isinstance(value, str) and _SAFE.match(value) is not None
