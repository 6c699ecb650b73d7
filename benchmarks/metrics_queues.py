"""How long it takes to ask the broker for fifty queues, whatever lies in them.

Called by ``benchmarks.metrics``; alone: ``python -m benchmarks.metrics_queues [--rounds 200]``.

Each queue has lists of four priorities with messages in all of them, and 20,000 deliveries are held or delayed.
Beside it what other exporters do: a count of each queue's one list, a round trip each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from redis import Redis

from celery_hardened.metrics.queues import RedisLayout, RedisQueues
from tests.support.redis_server import RedisServer

QUEUES, EACH, HELD = 50, 100, 20_000
STEPS, SEPARATOR = (0, 3, 6, 9), "\x06\x16"


def measure(server: RedisServer, *, rounds: int = 200) -> None:
    """Fill a database of *server*, ask it, and print."""
    with Redis.from_url(server.database()) as client:
        layout = RedisLayout(
            prefix="", separator=SEPARATOR, steps=STEPS, index="unacked_index", lease=60.0, delayed="h1d:"
        )
        names = [f"queue-{number}" for number in range(QUEUES)]
        _fill(client, layout, names)
        queues = RedisQueues(client, layout)
        reading = queues.read(names)
        assert sum(one.waiting for one in reading.queues.values()) == QUEUES * len(STEPS) * EACH
        print(f"queues: {QUEUES} of {len(STEPS)} priorities, {HELD} deliveries", flush=True)
        before = client.info("commandstats")["cmdstat_evalsha"]["usec"]
        _show("all that we tell, one pipelined call", _timed(lambda: queues.read(names), rounds))
        busy = client.info("commandstats")["cmdstat_evalsha"]["usec"] - before
        print(f"    of which the server {busy / rounds / 1000:.2f} ms")
        _show("one LLEN for each queue", _timed(lambda: [client.llen(name) for name in names], rounds))


def _fill(client: Redis, layout: RedisLayout, names: list[str]) -> None:
    now = time.time()
    text = json.dumps(
        {
            "body": "W1sxLCAyXSwge30sIHt9XQ==" * 10,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py", "task": "shop.charge", "id": "0" * 36, "eta": None, "argsrepr": "(...)",
                "hardened": {"v": 1, "published": now, "first_published": now},
            },
            "properties": {"correlation_id": "0" * 36, "delivery_info": {"exchange": "", "routing_key": "q"}},
        }
    )  # fmt: skip
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            for key in layout.lists(name):
                pipe.lpush(key, *[text] * EACH)
        pipe.zadd(layout.index, {f"h1:c:{n:012d}": now + 60 * n / 3000 for n in range(3000)})
        pipe.zadd(layout.index, {f"h1d:c:{n:012d}": now + n for n in range(HELD - 3000)})
        pipe.execute()


def _timed(ask: Callable[[], object], rounds: int) -> list[float]:
    ask()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - began) * 1000)
    return sorted(taken)


def _show(what: str, taken: list[float]) -> None:
    p99 = taken[min(len(taken) - 1, int(len(taken) * 0.99))]
    print(f"    {what}: median {statistics.median(taken):.2f} ms, p99 {p99:.2f}, least {taken[0]:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    program = shutil.which("redis-server")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        server = RedisServer(Path(name) / "server", binary=Path(program) if program else None)
        with server:
            measure(server, rounds=options.rounds)


if __name__ == "__main__":
    main()
