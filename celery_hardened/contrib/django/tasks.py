"""Tasks of ours, for ``app.autodiscover_tasks()`` to find. A project schedules them like its own."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task

from celery_hardened.hardening import Hardening
from celery_hardened.task import HardenedTask

#: Seconds after which pruning leaves the rest to the next run.
_LONGEST = 60.0


@shared_task(bind=True, base=HardenedTask, name="celery_hardened.prune_schedule_runs")  # type: ignore[untyped-decorator]
def prune_schedule_runs(self: Any) -> dict[str, int]:
    """Keep run history within ``hardened_run_history_max_age`` and ``hardened_run_history_max_count``.

    Returns:
        How many rows went for ``age`` and for ``count``.
    """
    from celery_hardened.contrib.django.runs.prune import prune

    settings = Hardening.expect(self.app).settings
    return prune(
        max_age=settings.run_history_max_age,
        max_count=settings.run_history_max_count,
        until=time.monotonic() + _LONGEST,
    )
