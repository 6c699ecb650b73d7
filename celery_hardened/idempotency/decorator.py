"""``@idempotent``: says by what a task's work is known, and what a repetition of it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from celery.app.task import Task
from celery.local import Proxy

from celery_hardened.errors import ConfigurationError
from celery_hardened.idempotency.policy import Idempotent, OnDuplicate, OnStoreError, Store
from celery_hardened.key import BusinessKey

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__hardened_idempotent__"

_CHOICES: dict[str, tuple[str, ...]] = {
    "store": ("redis", "database"),
    "on_duplicate": ("wait", "skip", "raise"),
    "on_store_error": ("wait", "run"),
}


def idempotent(
    *names: str,
    key: str | Callable[..., object] | None = None,
    version: int = 1,
    store: Store = "redis",
    using: str = "default",
    on_duplicate: OnDuplicate = "wait",
    compare_arguments: bool = True,
    lifetime: float | timedelta | None = None,
    eta: float | timedelta = 0.0,
    on_store_error: OnStoreError = "wait",
) -> Callable[[F], F]:
    """
    Let calls with the same business key do their work once.

    ::

        @app.task(base=HardenedTask)
        @idempotent("invoice_id")
        def send_invoice(invoice_id: str, note: str = "") -> str: ...

    Two runs for one key never overlap; a finished one is answered with its result and not
    repeated; a failed one may be tried again. It goes *below* ``@app.task``, and changes
    nothing about the function itself.

    Args:
        names: The parameters that make the key. None, and no *key*: all of them.
        key: Instead, a template (``"invoice:{invoice_id}:{kind}"``), or a function that is called with
            the arguments and returns a plain value.
        version: Raise it when the work behind the same key becomes another.
        store: ``database``: the mark is written in the same transaction as the effect.
        using: With ``store="database"`` and Django: the alias of the database that the effect goes to.
        on_duplicate: What a call does while another message holds its key: ``wait`` and come back after its
            lease, ``skip`` and be ignored, ``raise`` ``ClaimBusyError``. A redelivery of the holder's own
            message always waits.
        compare_arguments: The same key with other arguments is a ``KeyMismatchError``.
        lifetime: How long finished work is remembered; by default as long as a repetition can come,
            and never less.
        eta: The longest countdown that it is published with; it lengthens *lifetime*.
        on_store_error: While the store does not answer: ``wait`` and come back, or ``run`` unclaimed.

    Raises:
        ConfigurationError: The options do not fit the function, or each other.
    """
    if names and not isinstance(names[0], str):
        raise ConfigurationError(
            f"@idempotent on {_name(names[0])!r} has no brackets. Write @idempotent('name of a parameter'), or "
            f"@idempotent() for all of them."
        )
    chosen = {"store": store, "on_duplicate": on_duplicate, "on_store_error": on_store_error}

    def decorate(function: F) -> F:
        _refuse_what_is_no_function(function)
        for option, value in chosen.items():
            if value not in _CHOICES[option]:
                raise ConfigurationError(
                    f"@idempotent of {_name(function)!r}: {option} is {value!r}; it must be one of "
                    f"{', '.join(map(repr, _CHOICES[option]))}."
                )
        if store == "database" and on_store_error == "run":
            raise ConfigurationError(
                f"@idempotent of {_name(function)!r}: on_store_error='run' with store='database' would run the body "
                f"outside of the transaction it is written for. Leave it at 'wait'."
            )
        if store != "database" and using != "default":
            raise ConfigurationError(
                f"@idempotent of {_name(function)!r}: using={using!r} names a database, and store is {store!r}. "
                f"Say store='database', or leave using out."
            )
        options = Idempotent(
            key=BusinessKey.of(function, *names, key=key, version=version),
            store=store,
            using=using,
            on_duplicate=on_duplicate,
            compare_arguments=bool(compare_arguments),
            lifetime=None if lifetime is None else _seconds(function, "lifetime", lifetime),
            eta=_seconds(function, "eta", eta),
            on_store_error=on_store_error,
        )
        try:
            setattr(function, _ATTRIBUTE, options)
        except (AttributeError, TypeError) as problem:
            raise ConfigurationError(
                f"{function!r} takes no attribute, so @idempotent cannot mark it. Wrap it in a function of your own."
            ) from problem
        return function

    return decorate


def options_of(task: Any) -> Idempotent | None:
    """What ``@idempotent`` said of *task*, ``None`` if it was not used."""
    found = getattr(getattr(task, "run", None), _ATTRIBUTE, None)
    return found if isinstance(found, Idempotent) else None


def _refuse_what_is_no_function(function: Any) -> None:
    # A task that was not bound yet is a proxy; asking it anything would bind it.
    if issubclass(type(function), Proxy) or isinstance(function, Task):
        raise ConfigurationError(
            f"@idempotent is above the decorator that made {_name(function)!r} a task. Write @app.task first, and "
            f"@idempotent below it, directly on the function."
        )
    if isinstance(function, type):
        raise ConfigurationError(f"@idempotent is on class {_name(function)!r}. Write it on its run method.")
    if not callable(function):
        raise ConfigurationError(f"@idempotent is on {function!r}, which is no function.")
    if getattr(function, _ATTRIBUTE, None) is not None:
        raise ConfigurationError(f"@idempotent is on {_name(function)!r} twice. A task has one key.")


def _seconds(function: Any, option: str, value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise ConfigurationError(
            f"@idempotent of {_name(function)!r}: {option} is {value!r}; it must be seconds or a timedelta, and not "
            f"negative."
        )
    return float(seconds)


def _name(function: Any) -> str:
    try:
        return str(getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or function)
    except Exception:  # noqa: BLE001 - a proxy asks the current app, which may not have its task
        return object.__repr__(function)
