"""Log fields of a task, and the one rule about arguments: only allow-listed ones.

``log_args = ("order_id",)`` on a task names the arguments that may be logged,
shown in dead letter lists and sent as ``argsrepr``. No other argument ever is.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
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
        bound = inspect.signature(task.run).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {name: _shown(kwargs[name]) for name in allowed if name in kwargs}
    bound.apply_defaults()
    return {name: _shown(bound.arguments[name]) for name in allowed if name in bound.arguments}


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool) or (isinstance(value, (int, float)) and abs(value) < _NUMBER_MAX):
        return value
    text = value if isinstance(value, str) else _text(value)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - whatever a foreign __str__ raises
        return f"<{type(value).__name__}>"


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with every ``extra`` field. Offered, not imposed.

    What JSON cannot say is shown as text; an extra field cannot take the place of our own.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = self.formatStack(record.stack_info)
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        try:
            return json.dumps({**extra, **entry}, default=_text, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return json.dumps({**{name: _text(value) for name, value in extra.items()}, **entry})
