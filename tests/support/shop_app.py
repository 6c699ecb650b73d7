import os
import signal
import sys
import time
from pathlib import Path

from billiard.exceptions import TimeLimitExceeded
from celery import Celery
from celery.exceptions import Ignore, Reject
from celery.signals import task_failure, task_retry, task_success

from celery_hardened import HardenedTask, harden
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_retry_backoff=0.2,
    hardened_retry_floor=0.05,
    hardened_death_delay=0.3,
    hardened_death_delay_max=1.0,
    hardened_dead_letter_write_timeout=2.0,
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("VISIBILITY", "60")),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)
if "SLOW_RETRY_STATE" in os.environ:  # the result backend is slow to take RETRY
    from celery.backends.redis import RedisBackend

    store = RedisBackend.mark_as_retry

    def mark_as_retry(self, *args, **kwargs):
        time.sleep(1.0)
        stored = store(self, *args, **kwargs)
        note("retry_states", args[0])
        return stored

    RedisBackend.mark_as_retry = mark_as_retry
app.conf.update(eval(os.environ.get("CONF", "{}")))
harden(app, tasks=os.environ.get("LEVEL", "hardened"))  # type: ignore[arg-type]


@task_success.connect
def on_success(sender, **_):
    note("signals", "success", sender.name, sender.request.id)


@task_failure.connect
def on_failure(sender, task_id, **_):
    note("signals", "failure", sender.name, task_id)


@task_retry.connect
def on_retry(sender, request, **_):
    note("signals", "retry", sender.name, request.id)


class Shop(HardenedTask):
    abstract = True
    max_retries = 3
    log_args = ("order",)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note("hooks", "on_failure", self.name, task_id, type(exc).__name__)


def started(task, order):
    note("starts", task.name, order, task.request.retries, os.getpid())


@app.task(bind=True, base=Shop)
def fine(self, order, secret=None):
    started(self, order)
    return order


@app.task(bind=True, base=Shop)
def slow(self, order, seconds=1.0):
    started(self, order)
    time.sleep(seconds)
    note("ends", self.name, order)
    return order


@app.task(bind=True, base=Shop)
def broken(self, order, secret=None):
    started(self, order)
    raise ValueError(f"order {order} is broken")


@app.task(bind=True, base=Shop)
def flaky(self, order, failures=2):
    started(self, order)
    if self.request.retries < failures:
        raise ConnectionError("gateway down")
    return order


@app.task(bind=True, base=Shop)
def fixable(self, order):
    """Fails until the file ``fixed`` exists in $OUT."""
    started(self, order)
    if not Path(os.environ["OUT"], "fixed").exists():
        raise ValueError("not fixed yet")
    return order


class UnpicklableError(Exception):
    def __init__(self, one, two):
        super().__init__("cannot be rebuilt")
        self.lock = sys.stdout


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


_MAIN = os.getpid()


class RebuiltElsewhereError(Exception):
    """Can be pickled, and made anew in the pool process only, as one that asks for the current task."""

    def __init__(self, text):
        if os.getpid() == _MAIN:
            raise RuntimeError("not here")
        super().__init__(text)


class DownElsewhereError(RebuiltElsewhereError, ConnectionError):
    pass


class OwnBase(BaseException):
    pass


@app.task(bind=True, base=Shop)
def unpicklable(self, order):
    started(self, order)
    raise UnpicklableError(1, 2)


@app.task(bind=True, base=Shop)
def rebuilt_elsewhere(self, order):
    started(self, order)
    raise RebuiltElsewhereError("odd")


@app.task(bind=True, base=Shop)
def down_elsewhere(self, order):
    started(self, order)
    raise DownElsewhereError("odd")


@app.task(bind=True, base=Shop)
def mute(self, order):
    started(self, order)
    raise MuteError


@app.task(bind=True, base=Shop)
def base_exception(self, order):
    started(self, order)
    raise OwnBase("odd")


@app.task(bind=True, base=Shop)
def unencodable(self, order):
    started(self, order)
    return object()


@app.task(bind=True, base=Shop, soft_time_limit=2.0, time_limit=30)
def soft_limit(self, order):
    started(self, order)
    time.sleep(20)


@app.task(bind=True, base=Shop, time_limit=2.0)
def hard_limit(self, order):
    started(self, order)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(0.1)


@app.task(bind=True, base=Shop, time_limit=2.0, autoretry_for=(TimeLimitExceeded,), max_retries=1)
def listed_limit(self, order):
    started(self, order)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(0.1)


@app.task(bind=True, base=Shop)
def rejecting(self, order):
    started(self, order)
    raise Reject("no", requeue=False)


@app.task(bind=True, base=Shop)
def ignoring(self, order):
    started(self, order)
    raise Ignore


@app.task(bind=True, base=Shop)
def exiting(self, order):
    started(self, order)
    sys.exit(3)


@app.task(bind=True, base=Shop)
def out_of_memory(self, order):
    started(self, order)
    raise MemoryError("64 GiB")


class BadHook(Shop):
    abstract = True

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        raise RuntimeError("a hook after the retry was sent")


@app.task(bind=True, base=BadHook)
def bad_hook(self, order):
    started(self, order)
    if self.request.retries < 2:
        raise ConnectionError("gateway down")
    return order


class HungryHook(Shop):
    abstract = True

    def on_success(self, retval, task_id, args, kwargs):
        raise MemoryError("in a hook, outside of the task's body")


@app.task(bind=True, base=HungryHook)
def hungry_hook(self, order):
    started(self, order)
    return order


@app.task(bind=True, base=Shop)
def killer(self, order):
    started(self, order)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, base=Shop)
def worker_killer(self, order):
    """Takes the whole worker along, as an out-of-memory kill of a container does."""
    started(self, order)
    time.sleep(0.3)
    os.killpg(os.getpgid(0), signal.SIGKILL)


@app.task(bind=True, base=Shop)
def explicit(self, order):
    started(self, order)
    raise self.retry(exc=ValueError("as I said"), countdown=0.1, max_retries=2)


@app.task(bind=True, base=Shop)
def quiet_retry(self, order):
    """retry(throw=False) and an ordinary return."""
    started(self, order)
    if self.request.retries < 1:
        self.retry(countdown=0.1, throw=False)
    return order


class Pushing(Shop):
    """The documented pattern: a context around run()."""

    abstract = True

    def __call__(self, *args, **kwargs):
        note("contexts", "pushed")
        return self.run(*args, **kwargs)


@app.task(bind=True, base=Pushing)
def in_context(self, order):
    started(self, order)
    if self.request.retries < 1:
        raise ConnectionError("once")
    return order


# --- contained: plain Celery tasks of the same app -------------------------------------------------


@app.task(bind=True)
def plain(self, order):
    started(self, order)
    return order


@app.task(bind=True)
def plain_broken(self, order):
    started(self, order)
    raise ValueError("broken")


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=0.1, retry_jitter=False, max_retries=1)
def plain_retrying(self, order):
    started(self, order)
    raise ConnectionError("down")


@app.task(bind=True)
def plain_killer(self, order):
    started(self, order)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def plain_late_killer(self, order):
    started(self, order)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def plain_out_of_memory(self, order):
    started(self, order)
    raise MemoryError("64 GiB")


@app.task(bind=True)
def plain_exiting(self, order):
    started(self, order)
    sys.exit(3)


@app.task(bind=True, time_limit=2.0)
def plain_hard_limit(self, order):
    started(self, order)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(0.1)


@app.task
def total(numbers):
    note("totals", sum(numbers))
    return sum(numbers)
