"""An app with schedules, for tests of beat: which are set by ``SCHEDULES``, a Python expression."""

import os
import time
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab, schedule

from celery_hardened import HardenedTask, harden
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=float(os.environ.get("LEASE", "10")),
    timezone=os.environ.get("TIMEZONE", "UTC"),
    beat_schedule=eval(
        os.environ.get("SCHEDULES", "{}"), {"crontab": crontab, "schedule": schedule, "timedelta": timedelta}
    ),
    **eval(os.environ.get("CONF", "{}")),
)
harden(app)


@app.task(base=HardenedTask, bind=True)
def tick(self, *args):
    """Notes which slot it runs for."""
    run = self.execution
    at = run.slot.timestamp() if run.slot else 0.0
    note("runs", f"{run.schedule} {at:.3f} {self.request.id} {run.missed}")
    return run.schedule


@app.task(base=HardenedTask, bind=True)
def slow(self, seconds):
    note("starts", f"{self.execution.schedule} {self.request.id}")
    time.sleep(seconds)
    note("ends", f"{self.execution.schedule} {self.request.id}")


@app.task(bind=True)
def plain(self, *args):
    """Contained only."""
    note("runs", f"{self.request.headers.get('hardened', {}).get('schedule')} {self.request.id}")
