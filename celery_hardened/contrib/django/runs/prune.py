"""How many rows of run history are kept, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db import router

from celery_hardened.contrib.django.models import ScheduleRun

#: Rows of one statement, which is a transaction of its own: nobody waits long for a lock.
BATCH = 500


def prune(
    *,
    max_age: float,
    max_count: int,
    until: float | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> dict[str, int]:
    """Delete what is older than *max_age* seconds, and of what is left all but the *max_count* newest.

    Two that prune at once delete the same rows, and no more.

    Args:
        until: ``time.monotonic()`` after which no further batch begins; the next call goes on.

    Returns:
        How many rows went for ``age`` and for ``count``.
    """
    alias: str = router.db_for_write(ScheduleRun)
    rows = ScheduleRun._base_manager.using(alias)
    gone = {"age": _delete(rows.filter(decided__lt=clock() - timedelta(seconds=max_age)), until), "count": 0}
    # Where the newest end that are to be kept: to count and then delete would take too much if two did it.
    last = rows.order_by("-decided", "-id").values_list("decided", "id")[max_count : max_count + 1].first()
    if last is not None:
        decided, pk = last
        gone["count"] = _delete(rows.filter(decided__lt=decided), until)
        gone["count"] += _delete(rows.filter(decided=decided, id__lte=pk), until)
    return gone


def _delete(rows: Any, until: float | None) -> int:
    gone = 0
    while until is None or time.monotonic() < until:
        batch = list(rows.order_by("decided", "id").values_list("pk", flat=True)[:BATCH])
        if batch:
            gone += rows.filter(pk__in=batch).delete()[0]
        if len(batch) < BATCH:
            break
    return gone
