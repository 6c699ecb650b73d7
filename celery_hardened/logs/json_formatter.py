"""Records as JSON, one object a line."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Final

from celery_hardened.logs.arguments import text_of

#: Attributes of every record, and ``data``: all arguments of a task, where Celery logs of it.
_NOT_SHOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data"}

#: Said by ``CorrelationFilter`` where there is none.
_NO_ID: Final = "-"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with every ``extra`` field flat beside ``ts``, ``level``, ``logger`` and the rest.

    Offered, not imposed. What JSON cannot say is shown as text; an extra field cannot take the place of our own.

    Args:
        messages: Print what exceptions say. ``False``: of a traceback only the frames and the classes, for projects
            whose exceptions quote what they must not log. The ``message`` of a record is printed in any case.
    """

    def __init__(self, *args: Any, messages: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self._messages = messages

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text and self._messages:  # made into text before it came here, as by a QueueHandler
            entry["traceback"] = record.exc_text
        if record.stack_info:
            entry["stack"] = self.formatStack(record.stack_info)
        extra = {name: value for name, value in vars(record).items() if name not in _NOT_SHOWN}
        if extra.get("correlation_id") == _NO_ID:
            del extra["correlation_id"]
        try:
            return json.dumps({**extra, **entry}, default=text_of, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return json.dumps({**{name: text_of(value) for name, value in extra.items()}, **entry})

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        if self._messages:
            return super().formatException(ei)
        return "\n".join(_frames(ei[1], ei[2])) if ei[1] is not None else ""


def _frames(error: BaseException, trace: TracebackType | None) -> Iterator[str]:
    """Class and frames of *error*, and of what it came from, without a word that it says."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if seen:
            yield "from"
        seen.add(id(found))
        yield from (
            f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}' for frame in traceback.extract_tb(trace)
        )
        yield type(found).__name__
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        trace = None if found is None else found.__traceback__
