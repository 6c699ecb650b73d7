"""An app on which every alert can be provoked. Its text is copied into the directories of its processes."""

import os
import signal
import sys
import time
from pathlib import Path

from celery import Celery
from celery.worker.control import control_command
from redis import Redis

from celery_hardened import HardenedTask, Hardening, harden, idempotent
from tests.support.notes import note
from tests.support.until import until

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=4.0,
    hardened_retry_backoff=0.2,
    hardened_retry_floor=0.05,
    hardened_death_delay=0.2,
    hardened_death_delay_max=0.5,
    hardened_dead_letter_write_timeout=2.0,
    beat_schedule=eval(os.environ.get("SCHEDULES", "{}")),
)
app.conf.update(eval(os.environ.get("CONF", "{}")))
harden(app, tasks="all")
OUT = Path(os.environ["OUT"])


def boom():
    """Part of the page of metrics, which fails while the file ``boom`` is there."""
    if (OUT / "boom").exists():
        raise RuntimeError("this source is broken")


Hardening.expect(app).metrics.registry.at_scrape(boom)


class Watched(HardenedTask):
    abstract = True
    max_retries = 3


@app.task(base=Watched)
def fine(order=0):
    return order


@app.task(base=Watched, bind=True)
def flaky(self):
    if self.request.retries < 1:
        raise ConnectionError("gateway down")


@app.task(base=Watched)
def broken(order):
    raise ValueError("broken")


@app.task(base=Watched)
def raises(number):
    raise type(f"Odd{number}Error", (Exception,), {})


@app.task(base=Watched, time_limit=1, soft_time_limit=None)
def limited():
    time.sleep(60)


@app.task(base=Watched)
def killer():
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(base=Watched)
def nap(seconds):
    note("naps", seconds)
    time.sleep(seconds)


@app.task(base=Watched, bind=True)
@idempotent("order")
def overtaken(self, order):
    """Loses its claim while it runs."""
    redis = Redis.from_url(os.environ["RECORDS_URL"])
    for key in redis.scan_iter(f"{os.environ['KEY_PREFIX']}:claim:*"):
        redis.hset(key, "owner", "another run")


@app.task(base=Watched, bind=True)
@idempotent("order")
def unkept(self, order):
    """Its end cannot be written down: it comes when the test has cut the way to the store."""
    note("unkept", order)
    until((OUT / "cut").exists, within=120, what="the test to cut the way")


@control_command(args=[("seconds", float)])
def hold_up(state, seconds):
    """Hold up the loop that consumes, and nothing else of the process."""
    state.consumer.call_soon(time.sleep, seconds)


@control_command()
def deafen(state):
    """Lose the consumer, as no code should."""
    state.consumer.call_soon(state.consumer.task_consumer.cancel)


def web(port):
    """A process that publishes, and tells of it with prometheus-client, as a web server does."""
    import prometheus_client

    prometheus_client.start_http_server(port, "127.0.0.1")
    clock = time.time
    while True:
        fine.delay()
        if (OUT / "flood").exists():
            for _ in range(4):
                nap.apply_async((0.4,), queue=f"{os.environ['QUEUE']}-busy")
        if (OUT / "refuse").exists():
            try:
                fine.delay(object())
            except Exception as refused:  # noqa: BLE001 - which one it is, is another test's claim
                note("refused", type(refused).__name__)
            time.time = lambda: clock() + 3600  # and here a clock is wrong
            fine.delay()
            time.time = clock
        time.sleep(0.5)


if __name__ == "__main__":
    web(int(sys.argv[1]))
