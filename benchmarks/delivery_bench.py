"""What the measures of `benchmarks.delivery` share: a server, the two sides, workers, and what tasks tell.

Both sides are the same hardened app with the same acks, limits and prefetch; only
`hardened_redis_delivery` differs. Every run has a database that nobody used before.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import Celery
from kombu.transport.redis import Transport
from redis import Redis

from celery_hardened import harden
from tests.support.proc import LOG_TAIL
from tests.support.redis_server import RedisServer
from tests.support.worker import WorkerProcess

QUEUE = "bench"
STOCK, HARDENED = SIDES = ("stock", "hardened")

APP = """
import json, os, socket, time
from celery import Celery
from celery.signals import worker_ready
from celery_hardened import HardenedTask, harden

app = Celery("bench")
app.conf.update(json.loads(os.environ["BENCH_CONF"]))
harden(app)

def note(**facts):
    facts.update(at=time.monotonic(), who=os.environ["BENCH_WHO"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(json.dumps(facts).encode(), os.environ["BENCH_NOTES"])

@worker_ready.connect
def ready(**_):
    note(event="ready")

@app.task(base=HardenedTask, name="bench.noop")
def noop(number):
    return None

@app.task(base=HardenedTask, name="bench.tell")
def tell(number):
    note(event="start", number=number)

@app.task(base=HardenedTask, name="bench.hold", time_limit=3600, soft_time_limit=3500)
def hold(number):
    note(event="start", number=number)
    try:
        os.close(os.open(os.environ["BENCH_NOTES"] + f".{number}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return  # a second start: all there was to see
    time.sleep(3000)
"""


class Notes:
    """Where the tasks of all workers tell what happened, with the machine's monotonic clock."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "notes"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))

    def next(self, within: float) -> dict[str, Any] | None:
        """The next note, ``None`` after *within* seconds."""
        self._socket.settimeout(max(within, 0.001))
        try:
            return dict(json.loads(self._socket.recv(4096)))
        except TimeoutError:
            return None

    def wait(self, within: float, what: str, **facts: Any) -> dict[str, Any]:
        """The first note with these *facts*; others are dropped."""
        deadline = time.monotonic() + within
        while (left := deadline - time.monotonic()) > 0:
            note = self.next(left)
            if note and facts.items() <= note.items():
                return note
        raise SystemExit(f"waited {within:.0f} s for {what}")


class Bench:
    """
    One server and everything that runs against it.

    Args:
        directory: Files, logs and the notes' socket; a short path.
        server: A running one that nobody else uses: its statistics are counted.
        sides: Which deliveries are compared.
    """

    def __init__(self, directory: Path, server: RedisServer, sides: Sequence[str]) -> None:
        self.directory, self.server, self.sides = directory, server, tuple(sides)
        self.notes = Notes(directory)
        self._messages: list[bytes] = []
        self._started = 0
        for side in self.sides:
            app = self._app(self.conf(side, server.url))
            stock = app.connection_for_read().get_transport_cls() is Transport
            app.close()
            if stock != (side == STOCK):
                raise SystemExit(f"{side} delivery was asked for, and the app's connections are of the other kind")

    def conf(self, side: str, url: str, *, prefetch: int = 1, lease: float | None = None) -> dict[str, Any]:
        """Settings of an app; a *lease* is the visibility timeout where delivery is stock."""
        conf: dict[str, Any] = {
            "broker_url": url,
            "task_default_queue": QUEUE,
            "task_ignore_result": True,
            "worker_prefetch_multiplier": prefetch,
            "hardened_redis_delivery": side,
        }
        if lease is not None and side == HARDENED:
            conf["hardened_lease"] = lease
        elif lease is not None:
            conf["broker_transport_options"] = {"visibility_timeout": lease}
        return conf

    def producer(self, url: str) -> Celery:
        """An app that publishes, the same for both sides."""
        return self._app(self.conf(STOCK, url))

    def _app(self, conf: dict[str, Any]) -> Celery:
        app = Celery("bench", set_as_current=False)
        app.conf.update(conf)
        return harden(app)

    def fill(self, url: str, count: int) -> None:
        """Put *count* no-op messages into the queue, byte for byte the same for every run."""
        if len(self._messages) < count:
            place = self.server.database()
            app = self.producer(place)
            with app.producer_pool.acquire(block=True) as producer:
                for number in range(count):
                    app.send_task("bench.noop", (number,), producer=producer)
            app.close()
            with Redis.from_url(place) as client:
                self._messages = client.lrange(QUEUE, 0, -1)
                client.flushdb()
        with Redis.from_url(url) as client:
            for start in range(0, count, 1000):
                client.rpush(QUEUE, *self._messages[start : min(start + 1000, count)])

    def environment(self, who: str, conf: dict[str, Any]) -> dict[str, str]:
        """What a process that loads `APP` needs to know."""
        return {"BENCH_CONF": json.dumps(conf), "BENCH_WHO": who, "BENCH_NOTES": str(self.notes.path)}

    def worker(
        self,
        who: str,
        conf: dict[str, Any],
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] | None = None,
        loglevel: str = "WARNING",
    ) -> WorkerProcess:
        """A started worker, which tells its notes as *who*; not yet ready."""
        self._started += 1
        worker = WorkerProcess(
            f"{who}-{self._started}",
            self.directory,
            APP,
            pool=pool,
            concurrency=concurrency,
            queues=queues,
            env=self.environment(who, conf),
            args=["--without-heartbeat", "--loglevel", loglevel],
        )
        worker.start()
        return worker

    def ready_worker(self, who: str, conf: dict[str, Any], **how: Any) -> WorkerProcess:
        """A worker that consumes."""
        worker = self.worker(who, conf, **how)
        self.notes.wait(120, f"{who} to be ready; its log is {worker.log_path}", event="ready", who=who)
        return worker


def check(worker: WorkerProcess, deadline: float) -> None:
    """End the run with the worker's last words if it is gone, or if the time is up."""
    if not worker.running or time.monotonic() > deadline:
        how = "did not finish in time" if worker.running else f"ended with {worker.returncode}"
        raise SystemExit(f"{worker.name} {how} and wrote:\n{worker.log()[-LOG_TAIL:]}")
