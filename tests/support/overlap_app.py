"""An app with schedules whose tasks run for long, retry, fail and die, for tests of overlap policies."""

import os
import signal
import time
from pathlib import Path

from celery import Celery
from celery.exceptions import Reject

from celery_hardened import HardenedTask, harden
from tests.support.notes import note, notes

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=float(os.environ.get("LEASE", "10")),
    hardened_retry_backoff=0.2,
    hardened_retry_floor=0.05,
    beat_schedule=eval(os.environ.get("SCHEDULES", "{}")),
    **eval(os.environ.get("CONF", "{}")),
)
harden(app)


def starts(task):
    marks = (task.request.headers or {}).get("hardened", {})
    schedule, slot = marks.get("schedule"), marks.get("slot")
    note("runs", "start", schedule, task.request.id, slot, marks.get("missed", 0), time.time())
    return schedule


def ends(task, schedule):
    note("runs", "end", schedule, task.request.id, 0, 0, time.time())


def gate(name):
    while not Path(os.environ["OUT"], name).exists():
        time.sleep(0.02)


@app.task(base=HardenedTask, bind=True)
def slow(self, seconds):
    schedule = starts(self)
    time.sleep(seconds)
    ends(self, schedule)


@app.task(base=HardenedTask, bind=True)
def gated(self, name):
    """Ends when its gate is opened."""
    schedule = starts(self)
    gate(name)
    ends(self, schedule)


@app.task(bind=True)
def plain_slow(self, seconds):
    """Contained only."""
    schedule = starts(self)
    time.sleep(seconds)
    ends(self, schedule)


@app.task(bind=True)
def plain_gated(self, name):
    schedule = starts(self)
    gate(name)
    ends(self, schedule)


@app.task(base=HardenedTask, bind=True, max_retries=0)
def broken(self, seconds):
    schedule = starts(self)
    time.sleep(seconds)
    ends(self, schedule)
    raise ValueError("broken")


@app.task(base=HardenedTask, bind=True)
def rejecting(self, seconds):
    schedule = starts(self)
    time.sleep(seconds)
    ends(self, schedule)
    raise Reject("no", requeue=False)


@app.task(base=HardenedTask, bind=True, max_retries=3)
def retrying(self, countdown):
    """Three attempts, a while apart; it ends with the last."""
    schedule = starts(self)
    if self.request.retries < 2:
        raise self.retry(countdown=countdown)
    ends(self, schedule)


@app.task(base=HardenedTask, bind=True)
def dies_once(self):
    """The process of its first run is killed."""
    schedule = starts(self)
    if len(notes(Path(os.environ["OUT"]), "runs")) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ends(self, schedule)
