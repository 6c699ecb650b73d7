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


def log_args(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The allow-listed arguments of one call, by name; short values only, never raises."""
    allowed = getattr(task, "log_args", None) or ()
    if not allowed:
        return {}
    try:
        bound = inspect.signature(task.run).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {name: _shown(kwargs[name]) for name in allowed if name in kwargs}
    bound.apply_defaults()
    return {name: _shown(bound.arguments[name]) for name in allowed if name in bound.arguments}


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with every ``extra`` field. Offered, not imposed."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
