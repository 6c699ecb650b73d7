"""A whole worker is killed: seconds until its running task starts on another one.

Stock delivery gives a message back when its visibility timeout is over *and* a
worker looks, which each does every hundred seconds. It is given the lease as its
visibility timeout here; by default that is an hour. The kill comes just after the
task has started, when its lease is whole: the longest wait there is.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from benchmarks.delivery_bench import HARDENED, STOCK, Bench, check
from tests.support.worker import WorkerProcess

#: Stock workers look for what is overdue this often, so that a kill has to come at any time of it.
_STOCK_PERIOD = 100.0
#: A lease begins this long before its task starts, at most.
_FETCHED = 0.5


class _Pair:
    """Two workers on one queue: the one that takes the task is killed, and replaced when the other has it."""

    def __init__(self, bench: Bench, side: str, lease: float, kills: int, *, deadline: float) -> None:
        self.side, self.lease, self.kills = side, lease, kills
        self._deadline = deadline
        self.times: list[float] = []
        self.name = f"{side}-{lease:g}"
        self._bench = bench
        self._conf = bench.conf(side, bench.server.database(), lease=lease)
        self._producer = bench.producer(self._conf["broker_url"])
        self._workers: dict[str, WorkerProcess] = {}
        self._ready: set[str] = set()
        self._started = 0
        self._publish_at: float | None = None
        self._killed_at: float | None = None
        self._message = ""
        self._began = 0.0
        self.early = 0
        """New starts while the lease of the old one cannot have been over."""
        self.again = 0
        """Third starts: of a message that the other worker had done before it was killed in its turn."""
        self._start()
        self._start()

    @property
    def done(self) -> bool:
        return len(self.times) >= self.kills

    def _start(self) -> None:
        self._started += 1
        who = f"{self.name}-{self._started}"
        self._workers[who] = self._bench.worker(who, self._conf)

    def tick(self, now: float) -> None:
        """Publish if it is time to. Nobody but us may have killed a worker."""
        for worker in self._workers.values():
            check(worker, self._deadline)
        if self._publish_at is not None and now >= self._publish_at:
            self._publish_at = None
            self._message = f"{self.name}-{len(self.times)}"
            self._producer.send_task("bench.hold", (self._message,))

    def told(self, note: dict[str, Any]) -> None:
        """A worker of the pair is ready, or has started the task."""
        if note["event"] == "ready":
            self._ready.add(note["who"])
            if set(self._workers) == self._ready and not self.done:
                period = _STOCK_PERIOD if self.side == STOCK else self.lease / 3
                self._publish_at = time.monotonic() + random.uniform(0, period)
        elif note["number"] != self._message:
            self.again += 1
        elif self._killed_at is None:
            self._workers.pop(note["who"]).kill_group()
            self._ready.discard(note["who"])
            self._killed_at = time.monotonic()
            self._began = note["at"]
        else:
            self.times.append(note["at"] - self._killed_at)
            self.early += note["at"] - self._began < self.lease - _FETCHED
            self._killed_at = None
            if not self.done:
                self._start()

    def close(self) -> None:
        """End what is left."""
        for worker in self._workers.values():
            worker.stop()
        self._producer.close()


def measure(bench: Bench, *, leases: list[float], kills: int) -> None:
    """All leases and both sides at the same time, on databases of their own: they do little but wait."""
    deadline = time.monotonic() + 120 + kills * (2 * _STOCK_PERIOD + 5 * max(leases) + 60)
    pairs = [
        _Pair(bench, side, lease, kills if side == STOCK else 3 * kills, deadline=deadline)
        for lease in leases
        for side in bench.sides
    ]
    try:
        while not all(pair.done for pair in pairs):
            note = bench.notes.next(0.1)
            for pair in pairs:
                if note and note["who"].rpartition("-")[0] == pair.name:
                    pair.told(note)
                pair.tick(time.monotonic())
    finally:
        for pair in pairs:
            pair.close()

    print("\nRecovery after kill -9 of a whole worker: seconds to the new start of its running task")
    columns = f"{'least':>8}{'median':>8}{'worst':>8}"
    print(f"{'':14}{'stock: kills':>14}{columns}{'ours: kills':>14}{columns}")
    for lease in leases:
        line = f"lease {lease:4.0f} s  "
        for side in (STOCK, HARDENED):
            times = [value for pair in pairs if (pair.side, pair.lease) == (side, lease) for value in pair.times]
            line += f"{len(times):14}"
            cells = (min(times), statistics.median(times), max(times)) if times else ()
            line += "".join(f"{cell:8.1f}" for cell in cells) or f"{'-':>8}" * 3
        early, again = (sum(getattr(p, what) for p in pairs if p.lease == lease) for what in ("early", "again"))
        line += f"   {early} BEFORE THE LEASE WAS OVER" if early else ""
        print(line + (f"   {again} STARTED A THIRD TIME" if again else ""), flush=True)
