"""Celery's own lines about a task are dropped where a record of ours says the same (``hardened_task_logs``).

Theirs hold return values, and in ``record.data`` all arguments. Levels, handlers and formats stay what the project made
of them: a filter sits on each of three loggers. Making a record costs more than printing it, so the two lines of an
ordinary run are stopped before they are one.
"""

from __future__ import annotations

import logging
from typing import Any

from celery._state import get_current_app, get_current_task

from celery_hardened.errors import TaskProcessLostError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.retry import NOTES
from celery_hardened.pipeline.task_log import LOGGED, ours
from celery_hardened.pipeline.task_log import logger as our_logger

#: "Task … received", in the worker's main process.
RECEIVED = "celery.worker.strategy"

#: "Task … succeeded", "raised", "retry", "ignored", "rejected", where the body runs.
ENDED = "celery.app.trace"

#: "Task handler raised error", of an end that only the worker's main process knows.
REQUEST = "celery.worker.request"

_package_logger = logging.getLogger("celery_hardened")


class _Received(logging.Filter):
    """Drops the lines of a worker whose app is hardened; those of ``celery.*`` tasks stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        data = record.__dict__.get("data")
        if not isinstance(data, dict) or "args" not in data or str(data.get("name")).startswith("celery."):
            return True
        hardening = Hardening.of(get_current_app())  # a worker makes its app the current one
        return hardening is None or not ours(hardening) or not is_heard(record.levelno)


class _Ended(logging.Filter):
    """Drops the line of a run whose end we have logged, unless it tells of another end than that.

    Celery may find a success to be none: a result that cannot be encoded is a failure after the body returned.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        data = record.__dict__.get("data")
        if not isinstance(data, dict) or data.get("internal"):
            return True
        task = get_current_task()
        if task is None or task.request.id != data.get("id"):
            return True
        logged = (task.request.__dict__.get(NOTES) or {}).get(LOGGED)
        if logged is None or not is_heard(record.levelno):
            return True
        return logged in ("success", "replayed") and "exc" in data


class _Poison(logging.Filter):
    """Drops the line about a message that was buried as poison: its record says the same."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if not isinstance(error, TaskProcessLostError):
            return True
        hardening = Hardening.of(get_current_app())
        return hardening is None or not ours(hardening) or not is_heard(record.levelno)


def received(text: str, context: dict[str, Any], **options: Any) -> None:
    """Takes the place of ``logger.info`` in the strategy of a task of ours."""
    hardening = Hardening.of(get_current_app())
    if hardening is None or not ours(hardening) or not is_heard(logging.INFO):
        logging.getLogger(RECEIVED).info(text, context, **options)


def _is_enabled(level: int) -> bool:
    """``isEnabledFor`` of Celery's logger: no, for a line at INFO of a run whose end we have logged."""
    if level == logging.INFO:
        task = get_current_task()
        if task is not None and LOGGED in (task.request.__dict__.get(NOTES) or ()) and is_heard(level):
            return False
    return logging.Logger.isEnabledFor(_trace_logger, level)


def is_heard(level: int) -> bool:
    """Do our records of *level* arrive anywhere, or does somebody want them not to?

    ``dictConfig`` disables the loggers it does not name, and a project may have asked for ``celery`` at INFO and for
    all others at WARNING. A level that was set on our own loggers is a wish, and brings Celery's lines not back.
    """
    if our_logger.disabled or not our_logger.hasHandlers():
        return False
    return our_logger.isEnabledFor(level) or any(one.level for one in (our_logger, _package_logger))


_received, _ended, _poison, _trace_logger = _Received(), _Ended(), _Poison(), logging.getLogger(ENDED)


def drop_celery_lines() -> None:
    """In every process of a hardened app. Twice changes nothing."""
    logging.getLogger(RECEIVED).addFilter(_received)
    _trace_logger.addFilter(_ended)
    logging.getLogger(REQUEST).addFilter(_poison)
    _trace_logger.isEnabledFor = _is_enabled  # type: ignore[method-assign]
