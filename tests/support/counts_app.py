"""One task for each way to end. Each body notes in a file how its delivery is about to end: the truth, by itself."""

import os
import signal
import sys
import time
from pathlib import Path

from billiard.exceptions import TimeLimitExceeded
from celery import Celery
from celery.exceptions import Ignore, Reject
from celery.signals import task_received

from celery_hardened import HardenedTask, harden, idempotent
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_retry_backoff=0.1,
    hardened_retry_floor=0.05,
    hardened_death_delay=0.2,
    hardened_death_delay_max=0.5,
    hardened_lease=float(os.environ.get("LEASE", "30")),
    worker_max_tasks_per_child=int(os.environ.get("RECYCLE", "0")) or None,
)
app.conf.update(eval(os.environ.get("CONF", "{}")))
harden(app)


class Counted(HardenedTask):
    abstract = True
    max_retries = 3


def ends(task, outcome):
    """The delivery that runs will end as *outcome*."""
    note("truth", task.name, outcome)


def earlier(task, order):
    """How often *task* has begun on *order* before."""
    place = Path(os.environ["OUT"], f"begun-{task.name}-{order}")
    with place.open("a") as file:
        file.write("x")
    return place.stat().st_size - 1


def runs_until_told(order):
    note("begun", "long", order)
    while not Path(os.environ["OUT"], f"end-{order}").exists():
        time.sleep(0.05)
    time.sleep(2.0)


@task_received.connect
def received(request, **_):
    if request.name in ("proj.busy", "proj.skipping"):
        note("received", request.id)


@app.task(bind=True, base=Counted)
def ok(self, order):
    ends(self, "success")
    return order


@app.task(bind=True)
def plain(self, order):
    ends(self, "success")
    return order


@app.task(bind=True, base=Counted)
def broken(self, order):
    ends(self, "failure")
    raise ValueError(order)


@app.task(bind=True, base=Counted)
def exiting(self, order):
    ends(self, "failure")
    sys.exit(3)


@app.task(bind=True, base=Counted)
def flaky(self, order):
    if self.request.retries < 2:
        ends(self, "retry")
        raise ConnectionError("gateway down")
    ends(self, "success")


@app.task(bind=True, max_retries=1)
def plain_flaky(self, order):
    """Celery's own retry, which is then spent."""
    ends(self, "retry" if self.request.retries < 1 else "failure")
    raise self.retry(exc=KeyError(order), countdown=0.05)


@app.task(bind=True, base=Counted)
def rejecting(self, order):
    ends(self, "reject")
    raise Reject("no")


@app.task(bind=True, base=Counted)
def put_back(self, order):
    if earlier(self, order) == 0:
        ends(self, "requeue")
        raise Reject("not here", requeue=True)
    ends(self, "success")


@app.task(bind=True, base=Counted)
def ignoring(self, order):
    ends(self, "ignore")
    raise Ignore


@app.task(bind=True, base=Counted)
def replacing(self, order):
    ends(self, "ignore")
    raise self.replace(ok.s(order))


@app.task(bind=True, base=Counted)
@idempotent("order")
def once(self, order):
    ends(self, "success")
    return order


@app.task(bind=True, base=Counted)
@idempotent("order")
def busy(self, order):
    """Runs until a second message of it has come, and for a moment more."""
    ends(self, "success")
    runs_until_told(order)


@app.task(bind=True, base=Counted)
@idempotent("order", on_duplicate="skip")
def skipping(self, order):
    ends(self, "success")
    runs_until_told(order)


@app.task(bind=True, base=Counted, time_limit=300, soft_time_limit=290)
def endless(self, order):
    note("begun", "endless", self.request.id)
    time.sleep(280)


@app.task(bind=True, base=Counted)
def mended(self, order):
    """Fails for good, and succeeds after a redrive."""
    if earlier(self, order) == 0:
        ends(self, "failure")
        raise ValueError(order)
    ends(self, "success")


@app.task(bind=True, base=Counted)
def long(self, order):
    """Runs until it is told, without a key."""
    runs_until_told(order)
    ends(self, "success")


# --- processes alone -----------------------------------------------------------------------------------------


@app.task(bind=True, base=Counted)
def killed(self, order):
    """Dies in its first run, as by the kernel's hand."""
    if earlier(self, order) == 0:
        ends(self, "worker_lost")
        os.kill(os.getpid(), signal.SIGKILL)
    ends(self, "success")


@app.task(bind=True, base=Counted)
def poisonous(self, order):
    """Dies in each run; the third is one too many."""
    ends(self, "poison" if earlier(self, order) == 2 else "worker_lost")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def plain_killed(self, order):
    """Acked early, so that it never starts again."""
    ends(self, "worker_lost")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, base=Counted, soft_time_limit=6.0, time_limit=60)
def soft_limit(self, order):
    ends(self, "timeout")
    time.sleep(50)


@app.task(bind=True, base=Counted, time_limit=6.0, soft_time_limit=None)
def hard_limit(self, order):
    ends(self, "timeout")
    time.sleep(50)


@app.task(bind=True, base=Counted, time_limit=6.0, soft_time_limit=None, autoretry_for=(TimeLimitExceeded,))
def listed_limit(self, order):
    if self.request.retries == 0:
        ends(self, "retry")
        time.sleep(50)
    ends(self, "success")
