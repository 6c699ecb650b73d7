"""What schedules cost: ours beside Celery's beat, celery-redbeat and django-celery-beat, interleaved in one run.

::

    python -m benchmarks.beat                                  # some half an hour
    python -m benchmarks.beat --only burst --side hardened     # a few minutes
    python -m benchmarks.beat --only idle --count 10000 --rounds 5

- ``idle``: so many intervals of which none is due: CPU and seconds of a start from nothing, CPU of a tick and of
  an hour of ticks, memory
- ``burst``: 1,000 schedules of 10,000 are due at the same minute: CPU until all are published, and how late the
  last one is in the queue
- ``failover``: of two beats the one that fires gets SIGTERM or SIGKILL: seconds until the other one fires, and the
  slots that were lost or fired twice (see `benchmarks.beat_failover`)

Each run of the first two is a process of its own, which drives the scheduler's class as ``celery beat`` does. CPU
seconds are of the whole process, all its threads. The servers are private ones on this machine, without persistence;
databases are files of SQLite.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from redis import Redis

from benchmarks.beat_failover import failover
from benchmarks.beat_side import DJANGO, QUEUE, SIDES, WITH_DATABASE
from benchmarks.interleaved import turns
from celery_hardened.embedded import die_with_parent
from tests.support.redis_server import RedisServer

MEASURES = ("idle", "burst", "failover")
COUNTS = (100, 10_000, 100_000)
AMONG, DUE = 10_000, 1_000
ROUNDS, FAILOVERS = 3, 5

Run = dict[str, float]


def main() -> None:
    """Run what was asked for, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MEASURES)
    parser.add_argument("--side", action="append", choices=SIDES, help="may be given more than once")
    parser.add_argument("--count", action="append", type=int, help=f"schedules of idle {COUNTS}")
    parser.add_argument("--rounds", type=int, help=f"runs of each side ({ROUNDS}, of failover {FAILOVERS})")
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis")
    options = parser.parse_args()
    sides = [side for side in SIDES if not options.side or side in options.side]
    program = shutil.which("redis-server") if options.server == "redis" else None
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        server = RedisServer(Path(name) / "redis", binary=Path(program) if program else None)
        with server:
            bench = Bench(Path(name), server)
            if options.only in (None, "idle"):
                for count in options.count or COUNTS:
                    idle(bench, sides, count, options.rounds or ROUNDS)
            if options.only in (None, "burst"):
                burst(bench, sides, options.rounds or ROUNDS)
            if options.only in (None, "failover"):
                failover(Path(name), server, sides, options.rounds or FAILOVERS)


def idle(bench: Bench, sides: list[str], count: int, rounds: int) -> None:
    """Starts, ticks and memory."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for side in turns(sides, rounds):
        with bench.beat(side, count) as beat:
            runs[side].append({**beat.told(), **beat.told()})
    print(f"\n{count:,} schedules, none due, {rounds} rounds: median (lowest-highest)")
    print(f"{'':20}{'start, CPU s':22}{'start, s':22}{'tick, CPU ms':22}{'hour, CPU s':22}{'RSS MiB':20}more")
    for side, done in runs.items():
        print(
            f"{side:20}{spread(done, 'start_cpu')}{spread(done, 'start_wall')}{spread(done, 'tick_cpu', 1e3)}"
            f"{spread(done, 'idle_cpu')}{spread(done, 'rss', 2**-20, 0):20}{spread(done, 'rss_more', 2**-20, 0)}",
            flush=True,
        )


def burst(bench: Bench, sides: list[str], rounds: int) -> None:
    """All at once."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for side in turns(sides, rounds):
        with bench.beat(side, AMONG, DUE) as beat:
            beat.told()
            runs[side].append(beat.burst())
    print(f"\n{DUE:,} of {AMONG:,} due in one minute, {rounds} rounds: median (lowest-highest)")
    print(f"{'':20}{'CPU s':22}{'first is late, s':22}last is late, s")
    for side, done in runs.items():
        print(f"{side:20}{spread(done, 'cpu')}{spread(done, 'first')}{spread(done, 'last')}", flush=True)


def spread(runs: list[Run], measured: str, unit: float = 1.0, digits: int = 3) -> str:
    values = sorted(run[measured] * unit for run in runs)
    text = f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f}-{values[-1]:.{digits}f})"
    return f"{text:22}"


class Bench:
    """One server, one database file for each number of schedules, and each run's own copy of it."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self._folder = folder
        self._server = server
        self._runs = 0
        self._filled = cache(self._fill)

    @contextmanager
    def beat(self, side: str, count: int, due: int = 0) -> Iterator[Beat]:
        """A beat that starts; it is gone afterwards."""
        self._runs += 1
        folder = self._folder / str(self._runs)
        folder.mkdir()
        if side in WITH_DATABASE:
            shutil.copy(self._filled(count, due), folder / "db.sqlite3")
        url = self._server.database()
        beat = Beat(self._command(side, folder, url, count, due) + ([] if due else ["--idle"]), url)
        try:
            yield beat
        finally:
            beat.end()
            with Redis.from_url(url) as client:
                client.flushdb()
            shutil.rmtree(folder)

    def _fill(self, count: int, due: int) -> Path:
        folder = self._folder / f"database-{count}-{due}"
        folder.mkdir()
        subprocess.run([*self._command(DJANGO, folder, "-", count, due), "--fill"], check=True)
        return folder / "db.sqlite3"

    @staticmethod
    def _command(side: str, folder: Path, url: str, count: int, due: int) -> list[str]:
        words = [side, "--url", url, "--folder", str(folder), "--count", str(count), "--due", str(due)]
        return [sys.executable, "-m", "benchmarks.beat_side", *words]


class Beat:
    """A process of `benchmarks.beat_side`."""

    def __init__(self, command: list[str], url: str) -> None:
        self._command = command
        self._url = url
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent()
        )

    def told(self) -> Run:
        """The next of its measures."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a beat ended with {self._process.wait()}: {' '.join(self._command)}")
        return dict(json.loads(line))

    def cpu(self) -> float:
        """CPU seconds of all its threads so far, to the nanosecond."""
        # How Linux names the CPU clock of another process: clock_getcpuclockid(3).
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def burst(self) -> Run:
        """Wait for the next full minute, and for all that is due at it."""
        self._wait_quiet()
        minute = (time.time() // 60 + 1) * 60
        if minute - time.time() < 2:
            minute += 60
        first = 0.0
        with Redis.from_url(self._url) as client:
            time.sleep(minute - time.time() - 0.5)
            sent = client.llen(QUEUE)
            before = self.cpu()
            deadline = minute + 300
            while (now_sent := client.llen(QUEUE) - sent) < DUE:
                if now_sent and not first:
                    first = time.time()
                if time.time() > deadline:
                    raise SystemExit(f"{now_sent} of {DUE} were published in {deadline - minute:.0f} s")
                time.sleep(0.002)
            last = time.time()
            time.sleep(1.0)  # it writes down what it has done
            return {"cpu": self.cpu() - before, "first": (first or last) - minute, "last": last - minute}

    def _wait_quiet(self) -> None:
        """A minute that went by while it started is not to be counted with the next one."""
        with Redis.from_url(self._url) as client:
            deadline, sent, since = time.monotonic() + 120, -1, 0.0
            while time.monotonic() < deadline and time.monotonic() - since < 2:
                if (now_sent := client.llen(QUEUE)) != sent:
                    sent, since = now_sent, time.monotonic()
                time.sleep(0.05)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    main()
