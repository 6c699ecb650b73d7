"""Redis delivery, ours against the stock transport, interleaved in one run.

::

    python -m benchmarks.delivery                        # everything, some twenty minutes
    python -m benchmarks.delivery --quick                # everything, small
    python -m benchmarks.delivery --only throughput --rounds 6 --tasks 8000

- ``throughput``: tasks a second and CPU of a no-op task, prefork 1, 2, 8 and solo, prefetch multiplier 1 and 4
- ``commands``: what is said to Redis for one task, and in how many round trips
- ``latency``: from the publish to the start of the first task on an idle worker
- ``wakeups``: what 200 idle consumers cost, and how many of them one message wakes
- ``recovery``: from ``kill -9`` of a worker to the new start of its task

Ratios are of pairs that ran one after the other: median (lowest-highest).
The server is a private one on this machine, without persistence.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from redis import Redis

from benchmarks import delivery_commands, delivery_latency, delivery_recovery, delivery_throughput, delivery_wakeups
from benchmarks.delivery_bench import SIDES, Bench
from tests.support.redis_server import RedisServer

MEASURES = ("throughput", "commands", "latency", "wakeups", "recovery")


def main() -> None:
    """Run what was asked for, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MEASURES, help="may be given more than once")
    parser.add_argument("--rounds", type=int, help="throughput and wake-ups: runs of each side (4)")
    parser.add_argument("--tasks", type=int, help="throughput and commands: messages of a run (6000)")
    parser.add_argument("--kills", type=int, help="recovery: kills of a stock worker; of ours three times as many (3)")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis")
    parser.add_argument("--side", action="append", choices=SIDES, help="one side alone, without ratios")
    options = parser.parse_args()
    quick = options.quick
    rounds = options.rounds or (2 if quick else 4)
    tasks = options.tasks or (2000 if quick else 6000)
    kills = options.kills or (1 if quick else 3)
    chosen = options.only or MEASURES

    program = shutil.which("redis-server") if options.server == "redis" else None
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        server = RedisServer(directory / "server", binary=Path(program) if program else None)
        with server:
            with Redis.from_url(server.url) as client:
                info = client.info("server")
            print(f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}", flush=True)
            bench = Bench(directory, server, options.side or SIDES)
            if "throughput" in chosen:
                delivery_throughput.measure(bench, tasks=tasks, rounds=rounds, quick=quick)
            if "commands" in chosen:
                delivery_commands.measure(bench, tasks=min(tasks, 2000))
            if "latency" in chosen:
                delivery_latency.measure(bench, messages=40 if quick else 200)
            if "wakeups" in chosen:
                delivery_wakeups.measure(
                    bench,
                    consumers=200,
                    messages=20 if quick else 50,
                    rounds=min(rounds, 1 if quick else 3),
                    seconds=5.0 if quick else 10.0,
                )
            if "recovery" in chosen:
                delivery_recovery.measure(bench, leases=[5.0] if quick else [5.0, 30.0], kills=kills)


if __name__ == "__main__":
    main()
