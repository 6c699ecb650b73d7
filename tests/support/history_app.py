"""Tasks for rows of django-celery-beat's tables, one for each story that run history tells."""

import os
import signal
import time
from pathlib import Path

from celery import Celery

from celery_hardened import HardenedTask, harden
from tests.support.notes import note, notes

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=2.0,
    hardened_retry_backoff=0.1,
    hardened_retry_floor=0.05,
    hardened_death_delay=0.1,
    hardened_version="v1",
    **eval(os.environ.get("CONF", "{}")),
)
harden(app)
app.autodiscover_tasks(["celery_hardened.contrib.django"], force=True)


@app.task(base=HardenedTask, bind=True)
def tick(self):
    """Notes its id."""
    note("runs", self.request.id)


@app.task(base=HardenedTask, bind=True, max_retries=5, autoretry_for=(ConnectionError,))
def flaky(self):
    if self.request.retries < 2:
        raise ConnectionError("gateway down")
    note("runs", self.request.id)


@app.task(base=HardenedTask, bind=True, max_retries=0)
def broken(self):
    raise ValueError("broken")


@app.task(base=HardenedTask, bind=True)
def killed_once(self):
    """Its first pool process is killed in the body."""
    note("starts", self.request.id)
    if len(notes(Path(os.environ["OUT"]), "starts")) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(base=HardenedTask, bind=True)
def gated(self):
    """Waits for the test to open the gate."""
    note("starts", self.request.id)
    while not Path(os.environ["OUT"], "gate").exists():
        time.sleep(0.02)


@app.task
def plain():
    """Contained only."""
