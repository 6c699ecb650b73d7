"""What two beats do, and what becomes of the slots when the one that fires ends: a part of `benchmarks.beat`.

Two real processes of ``celery beat`` on one Redis, and a schedule of half a second. All messages are taken from the
queue as they come; each names the process that sent it. Every run has beats and a database of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from redis import Redis

from benchmarks.beat_failover_side import DATABASE, EVERY, SIDE, SIDES, TUNED, TUNING, URL
from benchmarks.beat_side import DJANGO, HARDENED, QUEUE, REDBEAT
from benchmarks.interleaved import turns
from tests.support.proc import Proc
from tests.support.redis_server import RedisServer

KINDS = (signal.SIGTERM, signal.SIGKILL)

#: Seconds that two beats are watched for; after a fail-over; and at most until there is one.
TOGETHER, AFTERWARDS, BOUND = 5.0, 2.5, 60.0

#: Says, in its log, that a beat does not fire by itself, or has begun to ask for the lead.
_STANDS_BY = {HARDENED: "this beat stands by"}
_STARTS = "beat: Starting..."


def failover(folder: Path, server: RedisServer, sides: Sequence[str], rounds: int) -> None:
    """Two beats side by side; then, where only one of them fires, that one ends."""
    sides = [side for side in sides if side in SIDES]
    if not sides:
        return
    print(f"\n{TOGETHER / EVERY:.0f} messages are due in {TOGETHER:g} s; of two beats there came, in one run:")
    for side in sides:
        with Pair(folder / "pair", server, side, tuned=True) as pair:
            print(f"{side:20}{pair.together()}", flush=True)

    leading = [side for side in sides if side in (HARDENED, REDBEAT)]
    if not leading:
        return
    runs: dict[tuple[str, signal.Signals], list[Run]] = {(side, kind): [] for side in leading for kind in KINDS}
    for side in turns(leading, rounds):
        for kind in KINDS:
            done = runs[side, kind]
            with Pair(folder / "pair", server, side, tuned=True) as pair:
                done.append(pair.fail_over(kind, (len(done) + 0.5) / rounds * EVERY))
    tuning = ", ".join(f"{name} {value}" for name, value in TUNING.items())
    print(f"\nthe beat that fires ends, {rounds} rounds; celery-redbeat with {tuning}")
    print("seconds until the first message of the other one; slots of all rounds")
    print(f"{'':20}{'signal':10}{'median':10}{'at most':10}{'not fired':12}fired twice")
    for (side, kind), done in runs.items():
        print(row(side, kind, done), flush=True)

    if REDBEAT in sides:
        print(f"\ncelery-redbeat as it comes, watched for {BOUND:g} s, one run of each")
        for kind in KINDS:
            with Pair(folder / "pair", server, REDBEAT, tuned=False) as pair:
                print(row(REDBEAT, kind, [pair.fail_over(kind, EVERY / 2)]), flush=True)


@dataclass(frozen=True, slots=True)
class Run:
    """One fail-over."""

    took: float | None
    """Seconds from the signal to the other beat's first message; ``None``: more than `BOUND`."""

    lost: int
    """Slots without a message."""

    doubled: int
    """Messages of a slot that had one."""


def row(side: str, kind: signal.Signals, runs: Sequence[Run]) -> str:
    took = [BOUND if run.took is None else run.took for run in runs]
    texts = ["none seen" if value >= BOUND else f"{value:.2f}" for value in (statistics.median(took), max(took))]
    lost, doubled = sum(run.lost for run in runs), sum(run.doubled for run in runs)
    return f"{side:20}{kind.name:10}{texts[0]:10}{texts[1]:10}{lost:<12}{doubled}"


@dataclass(frozen=True, slots=True)
class Message:
    """One of the queue."""

    at: float
    """When it was there, by this process's monotonic clock."""

    pid: int
    slot: float | None
    """Ours say which slot they are of."""


class Pair:
    """Two beats, both of which are there."""

    def __init__(self, folder: Path, server: RedisServer, side: str, *, tuned: bool) -> None:
        self._folder = folder
        self._client = Redis.from_url(server.database())
        self._side = side
        keywords = self._client.connection_pool.connection_kwargs
        self._environment = {SIDE: side, URL: f"redis://127.0.0.1:{server.port}/{keywords['db']}"}
        if tuned and side == REDBEAT:
            self._environment[TUNED] = "1"
        self._beats: list[Proc] = []
        self._ending = ExitStack()

    def __enter__(self) -> Pair:
        self._folder.mkdir()
        self._ending.callback(self._end)
        with ExitStack() as failed:
            failed.push(self._ending)
            if self._side == DJANGO:
                self._environment[DATABASE] = str(self._folder / "db.sqlite3")
                command = [sys.executable, "-m", "benchmarks.beat_failover_side"]
                subprocess.run(command, check=True, env={**os.environ, **self._environment})
            self._start()
            self._read(BOUND, until=lambda _: True)
            self._start()
            said = _STANDS_BY.get(self._side, _STARTS)
            self._beats[1].wait_for_log(said, within=BOUND)
            self._read(1.0)
            failed.pop_all()
        return self

    def __exit__(self, *of_error: object) -> None:
        self._ending.close()

    def together(self) -> int:
        """Messages of two beats."""
        return len(self._read(TOGETHER))

    def fail_over(self, kind: signal.Signals, phase: float) -> Run:
        """End the beat that fires, *phase* seconds after a message of it."""
        before = self._read(BOUND, until=lambda _: True)[-1:]
        if not before:
            raise SystemExit(f"{self._side} has stopped to fire")
        leader = next(beat for beat in self._beats if beat.pid == before[0].pid)
        seen = before + self._read(before[0].at + phase - time.monotonic())
        leader.signal(kind)
        began = time.monotonic()
        seen += self._read(BOUND, until=lambda message: message.pid != leader.pid)
        last = seen[-1]
        if last.pid == leader.pid:
            return Run(None, int((time.monotonic() - last.at) / EVERY), 0)
        return Run(last.at - began, *counted(seen + self._read(AFTERWARDS)))

    def _start(self) -> None:
        number = len(self._beats) + 1
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.beat_failover_side", "beat", "-l", "INFO"]
        command += ["-S", SIDES[self._side], "--pidfile=", "-s", str(self._folder / f"schedule-{number}")]
        environment = {**self._environment, "PYTHONPATH": str(Path(__file__).parents[1])}
        beat = Proc(f"beat-{number}", command, cwd=self._folder, env=environment)
        self._beats.append(beat)
        beat.start()

    def _read(self, seconds: float, until: Callable[[Message], bool] = lambda _: False) -> list[Message]:
        """What comes in so many seconds, or up to the message that *until* is true of."""
        found: list[Message] = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            taken = self._client.brpop([QUEUE], timeout=min(max(left, 0.001), 1.0))
            if taken is None:
                continue
            headers = json.loads(taken[1])["headers"]
            pid = int(headers["origin"].split("@")[0].removeprefix("gen"))
            slot = headers["hardened"]["slot"] if self._side == HARDENED else None
            found.append(Message(time.monotonic(), pid, slot))
            if until(found[-1]):
                break
        return found

    def _end(self) -> None:
        for beat in self._beats:
            beat.kill_group()
        self._client.flushdb()
        self._client.close()
        shutil.rmtree(self._folder)


def counted(seen: Sequence[Message]) -> tuple[int, int]:
    """Slots without a message, and messages too many, from the first message to the last.

    By the slot that a message names. Those of other beats name none: by the time from one to the next."""
    slots = [message.slot for message in seen if message.slot is not None]
    if slots:
        numbers = {round((slot - min(slots)) / EVERY) for slot in slots}
        return max(numbers) + 1 - len(numbers), len(slots) - len(numbers)
    steps = [round((after.at - before.at) / EVERY) for before, after in pairwise(seen)]
    return sum(step - 1 for step in steps if step > 1), steps.count(0)
