"""The first task on an idle worker: seconds from before its publish to the first line of its body."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict

from benchmarks.delivery_bench import HARDENED, STOCK, Bench
from benchmarks.interleaved import turns

#: What is measured: queues consumed, priority of the message.
CASES: dict[str, tuple[list[str], int | None]] = {
    "one queue": (["a"], None),
    "one queue, priority 9": (["a"], 9),  # a list of its own on Redis
    "-Q a,b, by turns": (["a", "b"], None),
    "-Q of ten queues, by turns": ([f"q{number}" for number in range(10)], None),
}


def measure(bench: Bench, *, messages: int) -> None:
    """A worker of each side, idle side by side, and messages for them by turns."""
    print(f"\nLatency of the first task on an idle worker, prefork 2: {messages} messages each, milliseconds")
    print(f"{'':28}{'stock p50':>10}{'p99':>8}{'ours p50':>10}{'p99':>8}   more at p50")
    for case, (queues, priority) in CASES.items():
        times = _times(bench, queues, priority, messages)
        line = f"{case:28}"
        for side in (STOCK, HARDENED):
            if times[side]:
                cuts = statistics.quantiles(times[side], n=100, method="inclusive")
                line += f"{cuts[49] * 1e3:10.2f}{cuts[98] * 1e3:8.2f}"
            else:
                line += f"{'-':>10}{'-':>8}"
        if times[HARDENED]:
            line += f"{(statistics.median(times[HARDENED]) - statistics.median(times[STOCK])) * 1e3:14.2f}"
        print(line, flush=True)


def _times(bench: Bench, queues: list[str], priority: int | None, messages: int) -> dict[str, list[float]]:
    urls = {side: bench.server.database() for side in bench.sides}
    producers = {side: bench.producer(url) for side, url in urls.items()}
    workers = [bench.ready_worker(side, bench.conf(side, url), queues=queues) for side, url in urls.items()]
    times: dict[str, list[float]] = defaultdict(list)
    asked: dict[str, int] = defaultdict(int)
    try:
        for side in turns(bench.sides, messages + 5):
            asked[side] += 1
            number = asked[side]
            # Idle for a time that fits no period of polling.
            time.sleep(random.uniform(0.02, 0.17))
            published = time.monotonic()
            producers[side].send_task(
                "bench.tell", (number,), queue=queues[number % len(queues)], priority=priority, ignore_result=True
            )
            started = bench.notes.wait(60, f"a task of {side} to start", event="start", who=side, number=number)
            if number > 5:  # first connections and imports are not what is measured
                times[side].append(started["at"] - published)
    finally:
        for worker in workers:
            worker.stop()
        for producer in producers.values():
            producer.close()
    return times
