"""The correlation id on every record of a process: the project's own lines too."""

from __future__ import annotations

import logging

from celery_hardened.correlation.current import correlation_id

#: What a record says where there is none, so that a format that names the field works everywhere.
NONE = "-"


class CorrelationFilter(logging.Filter):
    """Put on a log handler: gives each record ``correlation_id``, unless it has one; ``-`` where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "correlation_id" not in record.__dict__:
            record.correlation_id = correlation_id() or NONE
        return True
