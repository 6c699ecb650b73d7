"""The app module of the exporter's tests."""

from __future__ import annotations

import os
import time

from celery import Celery

from celery_hardened import harden
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    task_ignore_result=True,
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_retry_backoff=0.2,
    worker_prefetch_multiplier=1,
)
app.conf.update(eval(os.environ.get("CONF", "{}")))
harden(app)


@app.task
def fine() -> None:
    note("runs", "fine")


@app.task(acks_late=True)
def slow(seconds: float) -> None:
    note("starts", "slow")
    time.sleep(seconds)


@app.task
def broken() -> None:
    raise ValueError("broken")


@app.task(bind=True)
def again(self) -> None:
    raise self.retry(countdown=0, queue=os.environ["QUEUE"] + "-again")
