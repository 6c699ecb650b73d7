"""Run history as CSV: of any length, a page of rows in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db.models import Q

from celery_hardened.contrib.django.answers import csv_line
from celery_hardened.contrib.django.models import ScheduleRun

#: Rows that are read at a time.
PAGE = 1000

COLUMNS = (
    "schedule", "slot", "kind", "verdict", "decided", "first", "count", "missed", "by", "term", "task_id",
    "outcome", "started", "ended", "duration", "attempts", "deaths", "worker", "error", "dead_letter",
)  # fmt: skip


def lines(rows: Any) -> Iterator[str]:
    """The rows of a query set, from the newest slot to the oldest, after a line of their names.

    Each page begins after the last row of the one before, so that rows that are added or
    pruned meanwhile are neither told twice nor make others be left out.
    """
    yield csv_line(COLUMNS)
    last: ScheduleRun | None = None
    while True:
        rest = rows if last is None else rows.filter(Q(slot__lt=last.slot) | Q(slot=last.slot, id__lt=last.id))
        page = list(rest.order_by("-slot", "-id")[:PAGE])
        for row in page:
            yield csv_line(_told(getattr(row, name)) for name in COLUMNS)
        if len(page) < PAGE:
            return
        last = page[-1]


def _told(value: object) -> object:
    """Moments in UTC."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
