"""The fix is deployed, the dead letters are sent again, and everything completes, the chord included."""

from __future__ import annotations

from celery_hardened.demo.line import Line
from celery_hardened.demo.scenes.bug import BILL, FAILING
from celery_hardened.demo.scenes.garbage import UNKNOWN
from celery_hardened.demo.stage import Stage

TITLE = "The fix, and a redrive"
STORY = "v2 knows the country, and the task that v1 did not know. It is deployed, and the letters are redriven."

#: The release with the fix.
FIX = "v2"

#: What the three boxes of the chord cost: DE, AX, FR.
TOTAL = 450 + 1200 + 700


def play(stage: Stage) -> list[Line]:
    """Deploy, redrive; wait for all to succeed."""
    producer, diary = stage.shop, stage.diary
    stage.deploy(FIX)
    again = (*FAILING, UNKNOWN)
    before = {task_id: diary.starts(task_id) for task_id in again}
    stage.celery("hardened", "dlq", "redrive", "--task", "shop.ship", "--why", "fixed", "--yes")
    sent = producer.redrive("shop.archive", why=f"{FIX} knows it")
    stage.say("python", f"hardening.redrive(Query(task='shop.archive'), …): {sent} sent")
    stage.until(lambda: producer.settled(again))
    if producer.succeeded(again):
        stage.until(lambda: producer.settled([BILL]) and set(again) <= producer.letters("resolved").keys())

    done = producer.successes(again)
    once = all(diary.starts(task_id) == before[task_id] + 1 for task_id in again)
    resolved = set(again) <= producer.letters("resolved").keys()
    bills = diary.starts(BILL)
    total = producer.result(BILL) if producer.succeeded([BILL]) else "no"
    return [
        Line(
            f"redrive with {FIX}",
            f"{done} of {len(again)} letters redriven, run once more, and resolved",
            done == len(again) and once and resolved,
        ),
        Line("its chord", f"completed: the bill ran {bills} time, {total} cents", bills == 1 and total == TOTAL),
    ]
