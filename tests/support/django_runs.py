"""Run history for tests: lines as beats write them, reports as workers send them, and the rows that came of them."""

from __future__ import annotations

import json
from typing import Any

from celery_hardened.beat.names import task_id_of
from celery_hardened.beat.run_report import RunReport
from celery_hardened.contrib.django.models import ScheduleRun

#: A slot: 2026-11-14T22:13:20Z.
AT = 1_794_694_400.0


def line(outcome: str = "fired", slot: float = AT, *, schedule: str = "nightly", **more: Any) -> bytes:
    """A line of a history, decided a tenth of a second after its slot."""
    said: dict[str, Any] = {"at": round(slot + 0.1, 3), "outcome": outcome, "term": 3, "slot": slot}
    if outcome == "fired":
        said["id"] = task_id_of(schedule, slot)
    return json.dumps({**said, **more}, separators=(",", ":")).encode()


def report(outcome: str = "success", slot: float = AT, *, schedule: str = "nightly", **more: Any) -> RunReport:
    """A delivery that began a second after its slot and took two."""
    said: dict[str, Any] = {
        "schedule": schedule,
        "slot": slot,
        "task_id": task_id_of(schedule, slot),
        "outcome": outcome,
        "at": slot + 3,
        "started": slot + 1,
        "runtime": 2.0,
        "worker": "w1@test",
    }
    return RunReport(**{**said, **more})


def runs(alias: str = "default", **only: Any) -> list[Any]:
    """The rows, by slot."""
    return list(ScheduleRun.objects.using(alias).filter(**only).order_by("slot", "id"))


def told(alias: str = "default", **only: Any) -> list[tuple[str, str, str, int]]:
    """Schedule, verdict, outcome and attempts of each row, by slot."""
    return [(one.schedule, one.verdict, one.outcome, one.attempts) for one in runs(alias, **only)]
