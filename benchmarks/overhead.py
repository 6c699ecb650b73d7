"""What hardening costs: no-op tasks, hardened against plain Celery, interleaved in one run.

    python -m benchmarks.overhead [--tasks 4000] [--rounds 4] [--pool prefork --pool solo]

Both sides have the same acks, prefetch and time limits, so that only our code
differs. CPU is user and system time of the worker and its children; tasks a
second are shown but depend on what else the machine does. Commands are counted
by the server (``commandstats``) and divided by the tasks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from celery import Celery
from redis import Redis

from benchmarks.interleaved import Ratio, cpu_seconds, turns
from celery_hardened.embedded import EmbeddedValkey

APP = """
import os
from celery import Celery
app = Celery("bench", broker=os.environ["BROKER"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"], task_ignore_result=True, worker_prefetch_multiplier=1,
    task_acks_late=True, task_reject_on_worker_lost=True, task_time_limit=300, task_soft_time_limit=240,
    accept_content=["json"], broker_connection_retry_on_startup=True,
    broker_transport_options={"socket_timeout": 30, "socket_connect_timeout": 10, "socket_keepalive": True},
)
if os.environ["SIDE"] == "hardened":
    from celery_hardened import HardenedTask, harden
    harden(app)
    base = HardenedTask
else:
    base = app.Task

@app.task(base=base)
def noop(order):
    return None
"""

#: Sent by idle waiting, not by tasks.
_IDLE = {"brpop", "ping", "info", "config|resetstat", "client|setinfo", "hello", "select", "llen", "hlen", "zrange"}


@dataclass(frozen=True)
class Round:
    """One worker that ran all tasks once."""

    cpu: float
    seconds: float
    commands: dict[str, float]


def run(side: str, pool: str, tasks: int, url: str, directory: Path) -> Round:
    """Start a worker of *side*, feed it, and measure it from its first task to its last."""
    queue = f"{side}-{pool}"
    environment = {
        **os.environ,
        "BROKER": url,
        "QUEUE": queue,
        "SIDE": side,
        "PYTHONPATH": os.pathsep.join([str(directory), str(Path(__file__).parents[1])]),
    }
    arguments = ["-A", "bench", "worker", "-P", pool, "-c", "2" if pool == "prefork" else "1", "-l", "WARNING"]
    client = Redis.from_url(url)
    client.flushdb()
    with subprocess.Popen(
        [sys.executable, "-m", "celery", *arguments, "--without-gossip", "--without-mingle", "--without-heartbeat"],
        env=environment,
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            _publish(queue, url, side, 300)
            _drained(client, queue)
            client.config_resetstat()
            before, started = cpu_seconds(process.pid), time.monotonic()
            _publish(queue, url, side, tasks)
            _drained(client, queue)
            seconds, cpu = time.monotonic() - started, cpu_seconds(process.pid) - before
            stats = {name.removeprefix("cmdstat_"): row["calls"] for name, row in client.info("commandstats").items()}
        finally:
            process.terminate()
            process.wait(30)
    commands = {name: calls / tasks for name, calls in stats.items() if name not in _IDLE and calls / tasks >= 0.02}
    return Round(cpu=cpu / tasks * 1e6, seconds=seconds, commands=commands)


def _publish(queue: str, url: str, side: str, count: int) -> None:
    """The producer's side, by itself: plain messages to both, stamped ones to the hardened worker."""
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.task_default_queue = queue
    if side == "hardened":
        from celery_hardened import harden

        harden(app)
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(count):
            app.send_task("bench.noop", (number,), producer=producer, ignore_result=True)
    app.close()


def _drained(client: Redis, queue: str) -> None:
    deadline = time.monotonic() + 300
    while client.llen(queue) or client.hlen("unacked"):
        if time.monotonic() > deadline:
            raise SystemExit("the worker did not finish within 300 s")
        time.sleep(0.05)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pool", action="append", choices=["prefork", "solo", "threads"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, EmbeddedValkey() as valkey:
        (Path(directory) / "bench.py").write_text(APP)
        for pool in options.pool or ["prefork", "solo"]:
            rounds: dict[str, list[Round]] = {"plain": [], "hardened": []}
            for side in turns(("plain", "hardened"), options.rounds):
                rounds[side].append(run(side, pool, options.tasks, valkey.url, Path(directory)))
            show(pool, options.tasks, rounds)


def show(pool: str, tasks: int, rounds: dict[str, list[Round]]) -> None:
    """One block a pool: medians, and the ratio of each interleaved pair."""
    plain, hardened = rounds["plain"], rounds["hardened"]
    ratio = Ratio.of([r.cpu for r in hardened], [r.cpu for r in plain])
    print(f"\n{pool}: {tasks} no-op tasks, {len(plain)} rounds each, interleaved")
    for name, side in rounds.items():
        cpu = statistics.median(r.cpu for r in side)
        rate = statistics.median(tasks / r.seconds for r in side)
        print(f"  {name:9} CPU {cpu:7.0f} us/task   {rate:6.0f} tasks/s")
    print(f"  CPU hardened / plain, median of pairs: {ratio}")
    names = sorted(set(plain[-1].commands) | set(hardened[-1].commands))
    print("  Redis commands a task (publish, fetch, ack):")
    for name in names:
        ours, theirs = hardened[-1].commands.get(name, 0), plain[-1].commands.get(name, 0)
        print(f"    {name:12} plain {theirs:5.2f}  hardened {ours:5.2f}")


if __name__ == "__main__":
    main()
