"""A task's retry attributes, in Celery's names and with Celery's meanings."""

from __future__ import annotations

from typing import Any

from celery_hardened.errors import ConfigurationError
from celery_hardened.settings import Settings

_ABSENT = object()

#: Celery's own ``Task.default_retry_delay``, in seconds.
_DEFAULT_RETRY_DELAY = 180.0


def options_of(task: Any, settings: Settings) -> dict[str, Any]:
    """The fields of a ``RetryPolicy``, read from *task*; what it does not set comes from *settings*.

    ``None`` means "not set", save for ``max_retries``, where it is Celery's "for ever".
    ``retry_kwargs`` may hold ``max_retries`` and ``countdown``; both go before the attributes,
    and a ``countdown`` without ``retry_backoff`` is a fixed delay. ``retry_for`` without
    ``max_retries`` is bounded by time alone.

    Raises:
        ConfigurationError: A value has the wrong type.
    """
    kwargs = getattr(task, "retry_kwargs", None) or {}
    if not isinstance(kwargs, dict):
        raise ConfigurationError(f"retry_kwargs is {kwargs!r}; it must be a dict such as {{'max_retries': 5}}.")
    countdown = _seconds(kwargs.get("countdown"))
    retry_for = _given(task, "retry_for")
    backoff, backoff_max = _backoff(task, settings, fixed=countdown is not None)

    max_retries = kwargs.get("max_retries")
    if max_retries is None:
        max_retries = getattr(task, "max_retries", _ABSENT)
    if max_retries is _ABSENT:
        max_retries = settings.max_retries if retry_for is None else None

    default_delay = countdown if countdown is not None else _given(task, "default_retry_delay")
    jitter = getattr(task, "retry_jitter", None)
    return {
        "max_retries": max_retries,
        "backoff": backoff,
        "backoff_max": backoff_max,
        "jitter": True if jitter is None else bool(jitter),
        "default_delay": _DEFAULT_RETRY_DELAY if default_delay is None else default_delay,
        "floor": settings.retry_floor,
        "horizon": settings.retry_for if retry_for is None else retry_for,
        "retry_after_max": settings.retry_after_max,
        "autoretry_for": _classes(task, "autoretry_for"),
        "dont_autoretry_for": _classes(task, "dont_autoretry_for"),
    }


def _backoff(task: Any, settings: Settings, *, fixed: bool) -> tuple[float | None, float]:
    own = _given(task, "retry_backoff")
    most = _given(task, "retry_backoff_max")
    if most is None:
        most = settings.retry_backoff_max
    if own is None:
        # A task with a low maximum of its own never asked for our first step.
        low = isinstance(most, (int, float)) and most < settings.retry_backoff
        return (None if fixed else most if low else settings.retry_backoff), most
    if isinstance(own, bool):
        return (1.0 if own else None), most
    return (own or None), most


def _given(task: Any, name: str) -> Any:
    return _seconds(getattr(task, name, None))


def _seconds(value: Any) -> Any:
    """Let a duration be a ``timedelta`` too."""
    total = getattr(value, "total_seconds", None)
    return total() if callable(total) else value


def _classes(task: Any, name: str) -> tuple[Any, ...]:
    listed = getattr(task, name, None)
    if listed is None:
        return ()
    if isinstance(listed, type):
        raise ConfigurationError(f"{name} is {listed!r}; it must be a tuple of exception classes: add a comma.")
    return tuple(listed)
