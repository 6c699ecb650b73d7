"""The shop behind the site that browsers visit: its Celery app, and what its tasks leave behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

from celery_hardened import HardenedTask, harden
from tests.support.notes import note

OUT = Path(os.environ["OUT"])

#: While this file is there, the payment gateway does not answer.
DOWN = OUT / "gateway is down"

#: While this file is there, a report that has begun goes on.
LONG = OUT / "reports take long"

app = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue="shop",
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_dead_letter_store=os.environ["LETTERS"],
    hardened_version="2026.3",
    hardened_retry_backoff=0.1,
    hardened_retry_floor=0.05,
    hardened_beat_ttl=3.0,
)
harden(app)
app.autodiscover_tasks()


class GatewayTimeoutError(TimeoutError):
    """The payment gateway did not answer."""

    __module__ = "shop.errors"


@app.task(base=HardenedTask, name="shop.charge", max_retries=1, log_args=("order",))
def charge(order: int, card: str = "") -> None:
    """Take the money for an order. Each line of ``paid`` is money taken."""
    if DOWN.exists():
        raise GatewayTimeoutError("the payment gateway did not answer within 5 s")
    note("paid", order)


@app.task(base=HardenedTask, name="shop.resize", max_retries=0)
def resize(image: str, width: int = 800) -> None:
    if not image.endswith((".jpg", ".png")):
        raise ValueError(f"{image} is no picture")


@app.task(base=HardenedTask, name="shop.note", bind=True)
def tell(self: HardenedTask, word: str) -> None:
    """Each line of ``told`` is a run: its word, and when it began."""
    note("told", word, time.time())


@app.task(base=HardenedTask, name="shop.report")
def report(day: str = "") -> None:
    note("reports", "begun", time.time())
    while LONG.exists():
        time.sleep(0.02)
    note("reports", "done", time.time())
