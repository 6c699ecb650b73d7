"""``@deduplicate``: says by what a task is known while it is on its way, and what a second one does."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeVar

from celery.app.task import Task
from celery.local import Proxy

from celery_hardened.dedup.policy import Deduplicate, OnDuplicate, OnStoreError, Until
from celery_hardened.errors import ConfigurationError
from celery_hardened.key import BusinessKey

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__hardened_deduplicate__"

_CHOICES: dict[str, tuple[str, ...]] = {
    "on_duplicate": ("return", "raise", "drop"),
    "on_store_error": ("raise", "send"),
}


def deduplicate(
    *names: str,
    key: str | Callable[..., object] | None = None,
    version: int = 1,
    until: Literal["start", "finish"] | timedelta = "finish",
    on_duplicate: OnDuplicate = "return",
    on_store_error: OnStoreError = "raise",
) -> Callable[[F], F]:
    """
    Send one task of a key at a time: a second publish is refused while the first is on its way.

    ::

        @app.task(base=HardenedTask)
        @deduplicate("account_id", until="start")
        def refresh(account_id: int) -> None: ...

    It acts where a task is published, and says nothing about how often a message is run: for that
    there is ``@idempotent``, and both may be on one function. It goes *below* ``@app.task``, and
    changes nothing about the function itself.

    Args:
        names: The parameters that make the key. None, and no *key*: all of them.
        key: Instead, a template (``"account:{account_id}:{kind}"``), or a function that is called with
            the arguments and returns a plain value.
        version: Raise it when the work behind the same key becomes another.
        until: The key is free again when the body ``"start"``s, when the task is at its ``"finish"``,
            or when a ``timedelta`` has passed since the publish. Retries keep it, and a task that fails
            for good, expires, is revoked or lost frees it, whatever *until* is.
        on_duplicate: A publish that is refused will ``"return"`` the first task's ``AsyncResult``,
            ``"raise"`` ``DuplicateTaskError``, or ``"drop"``: return ``None``.
        on_store_error: While the store does not answer, a publish will ``"raise"``
            ``StoreUnavailableError`` with nothing sent, or ``"send"`` without a key.

    Raises:
        ConfigurationError: The options do not fit the function, or each other.
    """
    if names and not isinstance(names[0], str):
        raise ConfigurationError(
            f"@deduplicate on {_name(names[0])!r} has no brackets. Write @deduplicate('name of a parameter'), or "
            f"@deduplicate() for all of them."
        )
    chosen = {"on_duplicate": on_duplicate, "on_store_error": on_store_error}

    def decorate(function: F) -> F:
        _refuse_what_is_no_function(function)
        for option, value in chosen.items():
            if value not in _CHOICES[option]:
                raise ConfigurationError(
                    f"@deduplicate of {_name(function)!r}: {option} is {value!r}; it must be one of "
                    f"{', '.join(map(repr, _CHOICES[option]))}."
                )
        held, window = _held(function, until)
        options = Deduplicate(
            key=BusinessKey.of(function, *names, key=key, version=version),
            until=held,
            window=window,
            on_duplicate=on_duplicate,
            on_store_error=on_store_error,
        )
        try:
            setattr(function, _ATTRIBUTE, options)
        except (AttributeError, TypeError) as problem:
            raise ConfigurationError(
                f"{function!r} takes no attribute, so @deduplicate cannot mark it. Wrap it in a function of your own."
            ) from problem
        return function

    return decorate


def options_of(task: Any) -> Deduplicate | None:
    """What ``@deduplicate`` said of *task*, ``None`` if it was not used."""
    found = getattr(getattr(task, "run", None), _ATTRIBUTE, None)
    return found if isinstance(found, Deduplicate) else None


def _held(function: Any, until: Any) -> tuple[Until, float | None]:
    if until in ("start", "finish"):
        return until, None
    if isinstance(until, timedelta) and 0 < until.total_seconds() < math.inf:
        return "window", until.total_seconds()
    raise ConfigurationError(
        f"@deduplicate of {_name(function)!r}: until is {until!r}; it must be 'start', 'finish' or a timedelta "
        f"longer than nothing."
    )


def _refuse_what_is_no_function(function: Any) -> None:
    # A task that was not bound yet is a proxy; asking it anything would bind it.
    if issubclass(type(function), Proxy) or isinstance(function, Task):
        raise ConfigurationError(
            f"@deduplicate is above the decorator that made {_name(function)!r} a task. Write @app.task first, and "
            f"@deduplicate below it, directly on the function."
        )
    if isinstance(function, type):
        raise ConfigurationError(f"@deduplicate is on class {_name(function)!r}. Write it on its run method.")
    if not callable(function):
        raise ConfigurationError(f"@deduplicate is on {function!r}, which is no function.")
    if getattr(function, _ATTRIBUTE, None) is not None:
        raise ConfigurationError(f"@deduplicate is on {_name(function)!r} twice. A task has one key.")


def _name(function: Any) -> str:
    try:
        return str(getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or function)
    except Exception:  # noqa: BLE001 - a proxy asks the current app, which may not have its task
        return object.__repr__(function)
