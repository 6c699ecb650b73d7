"""What the measures of `benchmarks.idempotency` share: the six sides, their app, and one run of one side.

Two servers, so that the store of keys is told apart from the broker by what its own statistics count.
Every run has databases that nobody used before. Acks, limits and prefetch are the same on all sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.delivery_bench import QUEUE
from benchmarks.delivery_throughput import Emptying
from benchmarks.interleaved import cpu_seconds
from tests.support.redis_server import RedisServer
from tests.support.worker import MODULE, WorkerProcess, lay_out

PLAIN, HARDENED, IDEMPOTENT, DEDUPLICATE, ONCE, SINGLETON = SIDES = (
    "plain",
    "hardened",
    "@idempotent",
    "@deduplicate",
    "celery-once",
    "celery-singleton",
)

#: Those that refuse to publish a key that is on its way.
REFUSING = (DEDUPLICATE, ONCE, SINGLETON)

#: Said once a connection or by us, not by tasks.
_CONNECTING = {"hello", "auth", "select", "client|setinfo", "client|id", "ping", "info", "script|load"}

#: Tasks before those that are measured: start-up, first imports, loading of scripts.
WARM = 300

APP = """
import json, os, sys, time
from celery import Celery
from redis import Redis

SIDE = os.environ["BENCH_SIDE"]
app = Celery("bench")
app.conf.update(json.loads(os.environ["BENCH_CONF"]))
base, options, decorated = app.Task, {}, lambda function: function
if SIDE == "celery-once":
    from celery_once import QueueOnce as base
    options = {"once": {"graceful": True}}
elif SIDE == "celery-singleton":
    from celery_singleton import Singleton as base
elif SIDE != "plain":
    from celery_hardened import HardenedTask as base, harden
    harden(app)
    if SIDE == "@idempotent":
        from celery_hardened import idempotent
        decorated = idempotent("number")
    elif SIDE == "@deduplicate":
        from celery_hardened import deduplicate
        decorated = deduplicate("number")

@app.task(base=base, name="bench.noop", **options)
@decorated
def noop(number):
    return None

def publish(numbers):
    store = Redis.from_url(os.environ["BENCH_STORE"], single_connection_client=True)
    reads = store.info("stats")["total_reads_processed"]
    began, cpu = time.perf_counter(), time.process_time()
    for number in numbers:
        noop.delay(number)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    # The second look is a request of its own.
    trips = store.info("stats")["total_reads_processed"] - reads - 1
    count = len(numbers)
    return {"rate": count / seconds, "cpu": cpu / count * 1e6, "trips": trips / count}

if __name__ == "__main__":
    warm, count, again = map(int, sys.argv[1:])
    publish(range(-warm, 0))
    print(json.dumps([publish(range(count)), publish(range(again)) if again else None]))
"""


@dataclass(frozen=True)
class Run:
    """One side, once: published, then run by one worker. CPU in microseconds, and requests to the store, of a task.

    Requests of the worker are counted from its start to the last task, and divided by all of its tasks.
    """

    publish_rate: float
    publish_cpu: float
    publish_trips: float
    refused_trips: float | None
    rate: float
    cpu: float
    trips: float
    commands: dict[str, float]
    """Of the store, a task: those sent, and those inside scripts."""


class Sides:
    """The servers, and what every side is told.

    Args:
        delivery: Of the hardened sides from Redis; ``stock`` leaves the keys as the only difference to plain Celery.
    """

    def __init__(self, directory: Path, broker: RedisServer, store: RedisServer, delivery: str) -> None:
        self._directory, self._broker, self._store, self._delivery = directory, broker, store, delivery
        self._started = 0

    def run(self, side: str, *, pool: str, tasks: int) -> Run:
        """Publish *tasks* no-op tasks of as many keys, then run them."""
        self._started += 1
        directory = self._directory / f"{self._started}"
        broker, store = self._broker.database(), self._store.database()
        environment = {
            "BENCH_SIDE": side,
            "BENCH_STORE": store,
            "BENCH_CONF": json.dumps(self._conf(side, broker, store)),
        }
        sent, refused = _publish(directory, environment, tasks, again=tasks // 4 if side in REFUSING else 0)

        worker = WorkerProcess(
            "worker",
            directory,
            APP,
            pool=pool,
            concurrency=2,
            env=environment,
            args=["--without-heartbeat", "--loglevel", "WARNING"],
        )
        look = Redis.from_url(store, single_connection_client=True)
        before = _calls(look)
        worker.start()
        seen = Emptying(broker, worker)
        try:
            seen.wait(tasks)
            cpu = cpu_seconds(worker.pid)
            count, began = seen.left(), time.monotonic()
            seen.wait(0)
            seconds, cpu = time.monotonic() - began, cpu_seconds(worker.pid) - cpu
            commands = {
                name: (number - before.get(name, 0)) / (tasks + WARM)
                for name, number in _calls(look).items()
                if name not in _CONNECTING
            }
        finally:
            worker.stop()
            seen.client.close()
            look.close()
        return Run(
            publish_rate=sent["rate"],
            publish_cpu=sent["cpu"],
            publish_trips=sent["trips"],
            refused_trips=refused["trips"] if refused else None,
            rate=count / seconds,
            cpu=cpu / count * 1e6,
            # Where scripts are called, the other commands are theirs.
            trips=commands.get("evalsha") or sum(commands.values()),
            commands=commands,
        )

    def _conf(self, side: str, broker: str, store: str) -> dict[str, Any]:
        conf: dict[str, Any] = {
            "broker_url": broker,
            "task_default_queue": QUEUE,
            "task_ignore_result": True,
            "worker_prefetch_multiplier": 1,
            "task_acks_late": True,
            "task_reject_on_worker_lost": True,
            "task_time_limit": 300,
            "task_soft_time_limit": 240,
            "accept_content": ["json"],
            "broker_connection_retry_on_startup": True,
            "broker_transport_options": {"socket_timeout": 30, "socket_connect_timeout": 10, "socket_keepalive": True},
        }
        if side == ONCE:
            conf["ONCE"] = {
                "backend": "celery_once.backends.Redis",
                "settings": {"url": store, "default_timeout": 3600},
            }
        elif side == SINGLETON:
            conf |= {"singleton_backend_url": store, "singleton_lock_expiry": 3600}
        elif side != PLAIN:
            conf |= {"hardened_redis_url": store, "hardened_redis_delivery": self._delivery}
        return conf


def _publish(
    directory: Path, environment: Mapping[str, str], tasks: int, *, again: int
) -> tuple[dict[str, float], dict[str, float] | None]:
    """Publish in a process of its own; what the first publish of each key cost, and a second one of *again* keys."""
    full = {**os.environ, **environment, **lay_out(directory, APP)}
    command = [sys.executable, str(directory / f"{MODULE}.py"), str(WARM), str(tasks), str(again)]
    done = subprocess.run(command, env=full, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{environment['BENCH_SIDE']} could not publish:\n{done.stderr[-3000:]}")
    sent, refused = json.loads(done.stdout.splitlines()[-1])
    return sent, refused


def _calls(client: Redis) -> dict[str, int]:
    return {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in client.info("commandstats").items()}
