"""Tasks with ``@deduplicate``, one for each way that a key is taken, held and freed."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_hardened import HardenedTask, deduplicate, harden, idempotent
from tests.support.notes import note

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
    broker_connection_timeout=2.0,
    task_publish_retry=False,
)
app.conf.update(eval(os.environ.get("CONF", "{}")))
harden(app)


class Shop(HardenedTask):
    abstract = True
    max_retries = 3
    log_args = ("order",)


class Early(Shop):
    abstract = True
    acks_late = False


def started(task, order):
    note("starts", task.name.removeprefix("proj."), order, task.request.id)


def gate(name):
    """Wait for the test to open a gate."""
    while not Path(os.environ["OUT"], name).exists():
        time.sleep(0.02)


@app.task(bind=True, base=Shop)
@deduplicate("order")
def work(self, order, gated=""):
    started(self, order)
    if gated:
        gate(gated)
    return order


@app.task(bind=True, base=Shop)
@deduplicate("order", until="start")
def until_start(self, order, gated=""):
    started(self, order)
    if gated:
        gate(gated)
    return order


@app.task(bind=True, base=Shop)
@deduplicate("order", until=timedelta(seconds=float(os.environ.get("WINDOW", "600"))))
def window(self, order):
    started(self, order)
    return order


@app.task(bind=True, base=Shop)
@deduplicate("order", on_duplicate="raise")
def strict(self, order, gated=""):
    started(self, order)
    if gated:
        gate(gated)
    return order


@app.task(bind=True, base=Shop)
@deduplicate("order", on_duplicate="drop")
def dropped(self, order):
    started(self, order)


@app.task(bind=True, base=Shop)
@deduplicate("order")
def flaky(self, order, failures=2):
    """Fails, and publishes a twin of itself each time: it must be refused."""
    started(self, order)
    note("twins", flaky.delay(order).id)
    if self.request.retries < failures:
        raise ConnectionError("gateway down")
    return order


@app.task(bind=True, base=Shop)
@idempotent("order")
@deduplicate("order")
def both(self, order, failures=3):
    started(self, order)
    note("twins", both.delay(order).id)
    if self.request.retries < failures:
        raise ConnectionError("gateway down")
    note("effects", order)
    return order


@app.task(bind=True, base=Shop)
@deduplicate("order")
def explicit(self, order, failures=2):
    started(self, order)
    note("twins", explicit.delay(order).id)
    if self.request.retries < failures:
        raise self.retry(countdown=0.2)
    return order


@app.task(bind=True, base=Early)
@deduplicate("order")
def early_flaky(self, order, gated=""):
    """Its retry waits for two leases."""
    started(self, order)
    if self.request.retries < 1:
        raise self.retry(countdown=8.0)
    gate(gated)
    return order


@app.task(bind=True, base=Early)
@deduplicate("order")
def early(self, order, gated=""):
    started(self, order)
    if gated:
        gate(gated)
    return order


@app.task(bind=True, base=Shop)
@deduplicate("order")
def fixable(self, order):
    started(self, order)
    if not Path(os.environ["OUT"], "fixed").exists():
        raise ValueError("not fixed yet")
    return order


@app.task(bind=True, base=Shop)
@deduplicate("order", until=timedelta(hours=1))
def broken(self, order):
    started(self, order)
    raise ValueError("broken")


@app.task(bind=True, base=Shop)
@deduplicate("order")
def ignoring(self, order):
    started(self, order)
    raise Ignore


@app.task(bind=True, base=Shop)
@deduplicate("order")
def rejecting(self, order):
    started(self, order)
    raise Reject("no", requeue=False)


@app.task(bind=True, base=Shop)
@deduplicate("order")
def killer(self, order, deaths=1, gated=""):
    """Kills its process, as often as it is told."""
    started(self, order)
    path = Path(os.environ["OUT"], f"deaths-{order}")
    died = len(path.read_text()) if path.exists() else 0
    if died < deaths:
        path.write_text("x" * (died + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    gate(gated)
    return order


@app.task(bind=True, base=Early)
@deduplicate("order")
def early_killer(self, order):
    started(self, order)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, base=Shop, time_limit=1)
@deduplicate("order")
def hard_limit(self, order):
    started(self, order)
    gate("never")


if "WITHOUT_NEW" not in os.environ:  # a worker that was deployed before this task

    @app.task(bind=True, base=Shop)
    @deduplicate("order")
    def new_here(self, order):
        started(self, order)


@app.task(bind=True, base=Shop)
def replaced(self, order):
    started(self, order)
    raise self.replace(work.s(order))


@app.task(bind=True, base=Shop)
def plain(self, order):
    started(self, order)
    return order


@app.task
def total(numbers):
    note("totals", sum(numbers))
    return sum(numbers)
