"""Tasks that a schedule fires, one for each way to end: hardened, contained and acked early."""

import os
import signal
import time
from pathlib import Path

from celery import Celery
from celery.exceptions import Ignore, Reject
from celery.signals import task_prerun

from celery_hardened import HardenedTask, deduplicate, harden
from tests.support.notes import note, notes

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=float(os.environ.get("LEASE", "10")),
    hardened_retry_backoff=0.2,
    hardened_retry_floor=0.05,
    hardened_death_delay=0.2,
    hardened_death_delay_max=0.5,
)
harden(app)


class Nightly(HardenedTask):
    abstract = True
    max_retries = 3


class Early(Nightly):
    abstract = True
    acks_late = False


def gate(name):
    """Wait for the test to open a gate."""
    while not Path(os.environ["OUT"], name).exists():
        time.sleep(0.02)


if "GAP" in os.environ:  # accepted and acked, but nothing of it has begun

    @task_prerun.connect(weak=False)
    def stop_in_the_gap(task_id, **_):
        note("gaps", task_id)
        gate("gap")


def begin(task, gated):
    note("starts", task.request.id, task.execution.slot.timestamp(), task.execution.schedule, task.execution.missed)
    gate(gated)


def begin_contained(task, gated):
    note("starts", task.request.id)
    gate(gated)


@app.task(bind=True, base=Nightly)
def work(self, gated):
    begin(self, gated)
    note("effects", self.request.id)
    return "done"


@app.task(bind=True, base=Nightly)
@deduplicate(until="start")
def keyed(self, gated):
    begin(self, gated)


@app.task(bind=True, base=Early)
def early(self, gated):
    begin(self, gated)


@app.task(bind=True, base=Nightly, autoretry_for=(ConnectionError,))
def flaky(self, gated):
    begin(self, gated)
    if self.request.retries < 2:
        raise ConnectionError("gateway down")


@app.task(bind=True, base=Early)
def early_flaky(self, gated):
    begin(self, gated)
    if self.request.retries < 1:
        raise self.retry(countdown=0.5)


@app.task(bind=True, base=Nightly, max_retries=0)
def broken(self, gated):
    begin(self, gated)
    raise ValueError("broken")


@app.task(bind=True, base=Nightly)
def ignoring(self, gated):
    begin(self, gated)
    raise Ignore


@app.task(bind=True, base=Nightly)
def rejecting(self, gated):
    begin(self, gated)
    raise Reject("no", requeue=False)


@app.task(bind=True, base=Nightly)
def replaced(self, gated):
    begin(self, gated)
    raise self.replace(after.si())


@app.task(base=Nightly)
def after():
    note("replacements", "one")


@app.task(bind=True, base=Nightly)
def poison(self, gated):
    begin(self, gated)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, base=Nightly)
def dies_once(self, gated):
    """Its first process is killed in the body."""
    begin(self, gated)
    if len(notes(Path(os.environ["OUT"]), "starts")) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note("effects", self.request.id)


@app.task(bind=True, base=Early)
def early_lost(self, gated):
    begin(self, gated)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, base=Nightly, time_limit=5)
def hard_limit(self, gated):
    begin(self, gated)
    gate("never")


@app.task(bind=True)
def contained(self, gated):
    begin_contained(self, gated)


@app.task(bind=True)
def contained_broken(self, gated):
    begin_contained(self, gated)
    raise ValueError("broken")


@app.task(bind=True, max_retries=2)
def contained_flaky(self, gated):
    begin_contained(self, gated)
    if self.request.retries < 1:
        raise self.retry(countdown=0.5)


@app.task(bind=True, max_retries=2)
def contained_waiting(self, gated):
    begin_contained(self, gated)
    raise self.retry(countdown=3600)


@app.task(bind=True)
def contained_replaced(self, gated):
    begin_contained(self, gated)
    raise self.replace(after.si())


@app.task(bind=True)
def contained_lost(self, gated):
    begin_contained(self, gated)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, acks_late=True)
def contained_late(self, gated):
    begin_contained(self, gated)


if "WITHOUT_NEW" not in os.environ:  # a worker that was deployed before this task

    @app.task(base=Nightly)
    def new_here(gated):
        note("starts", "new")
