"""The app of the tests of checkpoints: `SHOP` and jobs of many units, each of which is noted when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.notes import notes
from tests.support.shop import SHOP

CHECKPOINTS = (
    SHOP
    + '''
from celery_hardened import idempotent


class Job(Shop):
    abstract = True
    time_limit = soft_time_limit = None


def begun(task, order):
    marked = bool((task.request.delivery_info or {}).get("redelivered"))
    note("runs", order, task.request.hostname.split("@")[0], os.getpid(), task.request.retries, int(marked))


@app.task(bind=True, base=Job)
def units(self, order, count, seconds=0.05, every=0.0):
    """*count* units of *seconds* each."""
    begun(self, order)
    for unit in self.checkpoint.iterate(range(count), every=every):
        time.sleep(seconds)
        note("units", order, unit, os.getpid())
    note("done", order)
    return order


@app.task(base=Job, bind=True)
@idempotent("order", lifetime=30 * 86400)
def keyed(self, order, count, seconds=0.05, every=0.0):
    """The same, with a key."""
    begun(self, order)
    for unit in self.checkpoint.iterate(range(count), every=every):
        time.sleep(seconds)
        note("units", order, unit, os.getpid())
    note("done", order)
    return order


@app.task(bind=True, base=Job, acks_late=False)
def early(self, order, count, seconds=0.05, every=0.0):
    """The same, acked before it runs."""
    begun(self, order)
    for unit in self.checkpoint.iterate(range(count), every=every):
        time.sleep(seconds)
        note("units", order, unit, os.getpid())
    note("done", order)
    return order


@app.task(bind=True, base=Job)
def mails(self, order, people, bug):
    """A mail to each; the one to *bug* fails until the file ``fixed`` exists in $OUT."""
    begun(self, order)
    for number in self.checkpoint.iterate(range(people), every=60.0):
        if number == bug and not Path(os.environ["OUT"], "fixed").exists():
            raise ValueError("no such address")
        note("units", order, number, os.getpid())
    return order


class DiesAfterSuccess(Job):
    """Takes the whole worker along between the success and the ack, once."""

    abstract = True

    def on_success(self, retval, task_id, args, kwargs):
        once = Path(os.environ["OUT"], "died")
        if not once.exists():
            once.touch()
            os.killpg(os.getpgid(0), signal.SIGKILL)


@app.task(bind=True, base=DiesAfterSuccess)
def dies_after_success(self, order, count):
    begun(self, order)
    for unit in self.checkpoint.iterate(range(count)):
        note("units", order, unit, os.getpid())
    note("done", order)
    return order
'''
)


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a job."""

    node: str
    pid: int
    retries: int
    marked: bool
    """It was told that an earlier delivery of its message may have been started."""


def runs(out: Path, order: str) -> list[Run]:
    """Starts of the job *order* so far."""
    found = [line.split() for line in notes(out, "runs")]
    return [
        Run(node, int(pid), int(retries), marked == "1") for who, node, pid, retries, marked in found if who == order
    ]


def done(out: Path, order: str) -> list[int]:
    """Units of the job *order* that were done so far, in the order it happened; a unit done twice is there twice."""
    return [int(unit) for who, unit, _ in (line.split() for line in notes(out, "units")) if who == order]
