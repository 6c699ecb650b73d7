"""What metrics cost, and how soon they answer.

::

    python -m benchmarks.metrics                          # everything
    python -m benchmarks.metrics --quick                  # everything, small
    python -m benchmarks.metrics --only cpu --rounds 100 --flower ENV/bin/python

- ``cpu``: CPU of a worker for a no-op task and tasks a second: without metrics, with ours, and with events (``-E``)
  to a Flower that has ``/metrics`` (the Python of an environment with ``flower`` in it; without one nobody listens)
- ``logs``: the same for lines of tasks at INFO: none, ours, Celery's own
- ``scrape``: how long a scrape of a saturated worker takes that knows 500 tasks
- ``pauses``: how long garbage collections stop its processes, with and without ``hardened_gc_freeze``; CPU a task
- ``queues``: how long it takes to ask the broker for 50 queues

Sides are measured by turns in one run. Ratios are of pairs that ran one after the other: median (quartiles).
The server is a private one on this machine, without persistence.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from redis import Redis

from benchmarks import metrics_cpu, metrics_pauses, metrics_queues, metrics_scrape
from benchmarks.delivery_bench import HARDENED, Bench
from tests.support.redis_server import RedisServer

MEASURES = ("cpu", "logs", "scrape", "pauses", "queues")


def main() -> None:
    """Run what was asked for, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MEASURES, help="may be given more than once")
    parser.add_argument("--rounds", type=int, help="cpu, logs and pauses: turns of each side (40)")
    parser.add_argument("--flower", help="cpu: the Python of an environment with Flower")
    parser.add_argument("--side", action="append", choices=metrics_cpu.SIDES, help="cpu: some of its sides")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    options = parser.parse_args()
    rounds = options.rounds or (6 if options.quick else 40)
    chosen = options.only or MEASURES

    program = shutil.which("redis-server")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        server = RedisServer(directory / "server", binary=Path(program) if program else None)
        with server:
            with Redis.from_url(server.url) as client:
                info = client.info("server")
            print(f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}", flush=True)
            bench = Bench(directory, server, (HARDENED,))
            if "cpu" in chosen:
                sides = options.side or metrics_cpu.SIDES
                metrics_cpu.measure(bench, rounds=rounds, flower=options.flower, sides=sides)
            if "logs" in chosen:
                metrics_cpu.measure_logs(bench, rounds=rounds)
            if "scrape" in chosen:
                metrics_scrape.measure_scrape(server, directory, scrapes=30 if options.quick else 300)
            if "pauses" in chosen:
                metrics_pauses.measure_pauses(server, directory, rounds=options.rounds or (10 if options.quick else 40))
            if "queues" in chosen:
                metrics_queues.measure(server, rounds=100 if options.quick else 1000)


if __name__ == "__main__":
    main()
