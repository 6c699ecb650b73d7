"""What the table knows of slots that beats remember no more."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.models import Q

from celery_hardened.contrib.django.models import ScheduleRun
from celery_hardened.contrib.django.runs.lines import moment
from celery_hardened.pipeline.run_reports import has_moments

#: Rows that are read at most: the latest decisions.
MOST = 1000


def lines_of(schedule: str, first: float, last: float) -> list[dict[str, Any]]:
    """What became of the slots of *schedule* from *first* to *last*, in the words of a beat's history, newest first.

    Raises:
        DatabaseError: The database does not answer.
    """
    if not has_moments():
        return []
    begin, end = moment(first), moment(last)
    rows = ScheduleRun._base_manager.using(router.db_for_read(ScheduleRun)).filter(
        Q(slot__gte=begin, slot__lte=end) | Q(slot__gt=end, first__lte=end),
        schedule=schedule,
        kind__in=("planned", "backfilled"),
    )
    found = []
    for row in rows.order_by("-decided", "-id")[:MOST]:
        outcome = row.kind if row.kind == "backfilled" else row.verdict
        line: dict[str, Any] = {"outcome": outcome, "slot": round(row.slot.timestamp(), 3)}
        if row.first is not None:
            line["first"] = round(row.first.timestamp(), 3)
        found.append(line)
    return found
