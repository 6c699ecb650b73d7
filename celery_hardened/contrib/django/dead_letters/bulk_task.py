"""The task that carries bulk actions out. Every app of a process that loads Django's apps has it."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task

from celery_hardened.contrib.django.dead_letters import bulk
from celery_hardened.contrib.django.dead_letters.bulk_work import BulkWork
from celery_hardened.task import HardenedTask

#: Seconds. A slice takes ten; to list some hundred thousand letters takes longer, and is done in one.
_LIMIT = 1800.0

#: Seconds that a message waits in the broker; of a longer pause it waits the rest when it is back.
_LONGEST_PAUSE = 60.0


def go_on(task: Any, pk: int) -> None:
    """Work on bulk action *pk* for some seconds, and publish the message that goes on with it."""
    action = bulk.take(pk, task_id=task.request.id)
    if action is None:
        _wait(task, pk)
        return
    work = BulkWork(task.app, action)
    pause = work.slice()
    if pause is not None and work.hand_over(pause):
        bulk.ask(task.app, pk, countdown=min(pause, _LONGEST_PAUSE) or None)


def _wait(task: Any, pk: int) -> None:
    """A message that came in a pause comes again, because it may be the only one left; nobody works on it."""
    left = bulk.pause_left(pk)
    if left is None:
        return
    # Where clocks differ it is delivered at once, over and over.
    time.sleep(min(left, 1.0))
    bulk.ask(task.app, pk, countdown=min(left, _LONGEST_PAUSE) or None)


OPTIONS: dict[str, Any] = {
    "name": bulk.TASK,
    "base": HardenedTask,
    "bind": True,
    "ignore_result": True,
    "time_limit": _LIMIT,
    "soft_time_limit": _LIMIT - 60,
}

shared_task(**OPTIONS)(go_on)
