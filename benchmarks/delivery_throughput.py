"""No-op tasks: how many a second, and at what CPU of the worker and of the server."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from redis import Redis

from benchmarks.delivery_bench import HARDENED, QUEUE, STOCK, Bench, check
from benchmarks.interleaved import Ratio, cpu_seconds, turns
from tests.support.worker import WorkerProcess

#: Pool, concurrency, prefetch multiplier.
Shape = tuple[str, int, int]
SHAPES: list[Shape] = [("prefork", c, m) for c in (1, 2, 8) for m in (1, 4)] + [("solo", 1, 1), ("solo", 1, 4)]
QUICK_SHAPES: list[Shape] = [("prefork", 2, 1), ("prefork", 2, 4), ("solo", 1, 1)]

_WARM = 400
_WITHIN = 300.0
#: Seconds between two looks at the queue: fine enough for a run of seconds, too rare to cost anything.
_LOOK = 0.02


class Emptying:
    """A worker that empties a full queue, seen from outside."""

    def __init__(self, url: str, worker: WorkerProcess, *, within: float = _WITHIN) -> None:
        self.client = Redis.from_url(url, single_connection_client=True)
        self.worker = worker
        self._deadline = time.monotonic() + within
        self._looks = 0

    def left(self) -> int:
        """Messages not yet done: waiting and held."""
        self._looks += 2
        return int(self.client.llen(QUEUE)) + int(self.client.hlen("unacked"))

    def wait(self, count: int) -> int:
        """Wait until at most *count* messages are left; answers how many are."""
        while (left := self.left()) > count:
            check(self.worker, self._deadline)
            time.sleep(_LOOK)
        return left

    def reads(self) -> int:
        """Requests the server has read off sockets, our own left out. A pipeline counts as one."""
        self._looks += 1
        return int(self.client.info("stats")["total_reads_processed"]) - self._looks

    def server_cpu(self) -> float:
        """User and system seconds of the server."""
        self._looks += 1
        used = self.client.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


@contextmanager
def emptying(bench: Bench, side: str, shape: Shape, tasks: int) -> Iterator[Emptying]:
    """
    A worker before a queue of about *tasks* messages, in full swing.

    It has done some hundred tasks before: start-up and first imports are not what is measured.
    """
    pool, concurrency, prefetch = shape
    url = bench.server.database()
    bench.fill(url, tasks + _WARM)
    conf = bench.conf(side, url, prefetch=prefetch)
    worker = bench.ready_worker(side, conf, pool=pool, concurrency=concurrency)
    seen = Emptying(url, worker)
    try:
        seen.wait(tasks)
        yield seen
    finally:
        worker.stop()
        seen.client.close()


@dataclass(frozen=True)
class Run:
    """One queue emptied: tasks a second, microseconds of CPU a task."""

    rate: float
    worker: float
    server: float


def run(bench: Bench, side: str, shape: Shape, tasks: int) -> Run:
    """Measure one side once."""
    with emptying(bench, side, shape, tasks) as seen:
        worker, server = cpu_seconds(seen.worker.pid), seen.server_cpu()
        count, began = seen.left(), time.monotonic()
        seen.wait(0)
        seconds = time.monotonic() - began
        worker, server = cpu_seconds(seen.worker.pid) - worker, seen.server_cpu() - server
    return Run(count / seconds, worker / count * 1e6, server / count * 1e6)


def measure(bench: Bench, *, tasks: int, rounds: int, quick: bool) -> None:
    """All shapes, by turns, and a line for each."""
    print(f"\nThroughput: {tasks} no-op tasks from a full queue, {rounds} rounds; medians; ratios are ours / stock")
    print(f"{'':24}|{'tasks a second':^36}|{'CPU us a task':^36}|{'server us':^12}")
    pair = f"{'stock':>8}{'ours':>8}  "
    print(f"{'pool':10}{'conc.':>6}{'prefetch':>8}|{pair}{'ratio':18}|{pair}{'ratio':18}|{'stock':>6}{'ours':>6}")
    for shape in QUICK_SHAPES if quick else SHAPES:
        runs: dict[str, list[Run]] = defaultdict(list)
        for side in turns(bench.sides, rounds):
            runs[side].append(run(bench, side, shape, tasks))
        pool, concurrency, prefetch = shape
        line = f"{pool:10}{concurrency:6}{prefetch:8}"
        for measured in ("rate", "worker", "server"):
            values = {side: [getattr(one, measured) for one in runs[side]] for side in (STOCK, HARDENED)}
            width = 6 if measured == "server" else 8
            line += "|"
            for side in (STOCK, HARDENED):
                line += f"{statistics.median(values[side]):{width}.0f}" if values[side] else f"{'-':>{width}}"
            if measured != "server":
                ratio = Ratio.of(values[HARDENED], values[STOCK]) if len(bench.sides) == 2 else "-"
                line += f"  {ratio!s:18}"
        print(line, flush=True)
