"""The books at the end: every message that was sent is accounted for, and nothing is left."""

from __future__ import annotations

import time
from typing import Final

from celery_hardened.demo.line import Line
from celery_hardened.demo.stage import Stage

#: Task ids whose letters nobody can redrive into a success: they stay, for somebody to look at.
FOR_PEOPLE: Final = {"invoice-5", "bomb.png", "no-json", "a-number"}

#: Seconds the system has to clear away a process that was killed.
_REAPING: Final = 5.0


def balance(stage: Stage) -> Line:
    """While it all still runs: success or open dead letter, one of the two for every message, and an empty broker."""
    producer = stage.shop
    stage.until(lambda: producer.waiting == 0)
    good = {task_id for task_id in producer.sent if producer.succeeded([task_id])}
    letters = producer.letters().keys()
    sum_of_it = f"{len(producer.sent)} messages = {len(good)} successes + {len(letters)} dead letters"
    return Line(
        "nothing lost",
        f"{sum_of_it}, {producer.waiting} left over",
        good.isdisjoint(letters)
        and good | letters == set(producer.sent)
        and letters == FOR_PEOPLE
        and producer.waiting == 0,
    )


def clearance(stage: Stage) -> Line:
    """After the end: no process and no file of ours is there any more."""
    deadline = time.monotonic() + _REAPING
    while (left := stage.leftovers) and time.monotonic() < deadline:
        time.sleep(0.05)
    gone = f"all {len(stage.spawned) + 1} processes ended, the folder is gone"
    return Line("nothing left", f"still there: {', '.join(left)}" if left else gone, not left)
