"""Our loggers take our fields, whatever the project's ``logging.setLogRecordFactory`` has put on the record before.

``logging`` raises ``KeyError`` where a field of ``extra`` is on the record already. A factory that gives each record a
``task_id`` is common, and every task would fail of a line about it.
"""

from __future__ import annotations

import logging
from typing import Any, Final

#: Loggers that are given ``extra``.
NAMES: Final = (
    "celery_hardened",
    "celery_hardened.beat",
    "celery_hardened.consumer",
    "celery_hardened.dead_letter",
    "celery_hardened.dedup",
    "celery_hardened.execute",
    "celery_hardened.idempotency",
    "celery_hardened.publish",
    "celery_hardened.request",
    "celery_hardened.retry",
    "celery_hardened.task",
    "celery_hardened.transport",
)


class Tolerant(logging.Logger):
    """What a record says of a run is what we know of it: our fields take the place of the factory's."""

    def makeRecord(self, *args: Any, **options: Any) -> logging.LogRecord:  # noqa: N802 - logging's name
        extra = options.pop("extra", None)
        if len(args) > _EXTRA:
            extra, args = args[_EXTRA], (*args[:_EXTRA], None, *args[_EXTRA + 1 :])
        record = super().makeRecord(*args, **options)
        if extra is not None:
            record.__dict__.update(extra)
        return record


#: Where ``logging`` gives ``extra``: name, level, file, line, text, its args, exc_info, function, extra, stack.
_EXTRA: Final = 8


def tolerate_factories() -> None:
    """Let our loggers take our fields. Twice changes nothing; a logger class of the project's stays below."""
    for name in NAMES:
        logger = logging.getLogger(name)
        if not isinstance(logger, Tolerant):
            logger.__class__ = type(Tolerant.__name__, (Tolerant, type(logger)), {})
