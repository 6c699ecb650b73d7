"""The one rule about arguments in logs: only allow-listed ones.

``log_args = ("order_id",)`` on a task names the arguments that may be logged,
shown in dead letter lists and sent as ``argsrepr``. No other argument ever is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

_SHOWN_MAX = 200

#: No larger number is shown as one: not NaN, not infinity, and none of more digits than Python prints.
_NUMBER_MAX = 1e18


def log_args(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The allow-listed arguments of one call, by name; short values only, never raises."""
    allowed = getattr(task, "log_args", None) or ()
    allowed = (allowed,) if isinstance(allowed, str) else allowed
    if not allowed:
        return {}
    try:
        bound = _signature(task.run).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {name: _shown(kwargs[name]) for name in allowed if name in kwargs}
    bound.apply_defaults()
    return {name: _shown(bound.arguments[name]) for name in allowed if name in bound.arguments}


@lru_cache(maxsize=1024)  # asked of every run
def _signature(run: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(run)


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool) or (isinstance(value, (int, float)) and abs(value) < _NUMBER_MAX):
        return value
    text = value if isinstance(value, str) else text_of(value)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def text_of(value: Any) -> str:
    """``str`` of a foreign *value*; never raises."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - whatever a foreign __str__ raises
        return f"<{type(value).__name__}>"
