"""A soak of beats: they are killed, frozen, cut off and given wrong clocks, and every slot is accounted for.

::

    python -m tests.chaos.beat_soak --minutes 20 --broker redis

A private Redis (AOF, ``appendfsync always``: what it has accepted it keeps), perhaps a RabbitMQ, three beats with
lines of their own to both, two workers. Some twenty schedules a second, and two hundred that are due in
the same second every ten. Faults are drawn from seeded dice: SIGKILL of the leader or of a standby, SIGTERM of
the leader, SIGSTOP for longer than the ttl, also in the midst of a burst; lines reset, closed, refused or gone
silent in either direction; servers killed and started again; a clock an hour back, and one an hour ahead.

In the end it computes the slots of each schedule from the anchor it began with, and looks each up in the run
history, in the log of all writes that the server keeps, and in the notes of the workers
(`tests.chaos.beat_soak_ledger`). It exits with 1 if a slot was lost or fired twice, or passed for a reason that its
policy does not know; on RabbitMQ, which may have a message of a slot twice, if a hardened task ran twice. What ran
twice because a restarted Redis gave its one message out again is counted, and is no beat's doing.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from celery_hardened.beat.record import Record
from tests.chaos.beat_soak_fleet import Fleet, load, plan
from tests.chaos.beat_soak_ledger import Notes, judge, published
from tests.chaos.beat_soak_plan import ENTRIES
from tests.chaos.beat_soak_report import Report
from tests.support.until import until

#: Seconds. What a fault of a server may take until all is as before.
PATIENCE: Final = 120.0


class BeatSoak:
    """One run, from empty servers to a report."""

    def __init__(self, options: argparse.Namespace, directory: Path, say: Callable[[str], Any]) -> None:
        self.options = options
        self.directory = directory
        self.say = say
        self.dice = random.Random(options.seed)
        count = max(10, round(options.minutes * 60 / options.every))
        self.kinds = plan(self.dice, count=count, broker=options.broker, restarts=options.restarts)
        self.began = time.monotonic()
        self.loads: list[str] = []
        self.fleet = Fleet(
            directory,
            broker=options.broker,
            server=options.server,
            ttl=options.ttl,
            beats=options.beats,
            dice=self.dice,
        )

    def run(self) -> Report:
        fleet = self.fleet
        try:
            fleet.start()
            anchors = until(self._anchors, within=PATIENCE, what="all schedules to begin")
            self._harm()
            fleet.calm()
            self._wait_for_progress()
            fleet.end_beats()
            until(lambda: not fleet.waiting(), within=PATIENCE, what="the workers to run what is left", every=0.5)
            for worker in fleet.workers:  # in good order: what they run ends first
                worker.stop(within=60)
            return self._report(anchors)
        finally:
            fleet.stop()

    def _anchors(self) -> dict[str, Record]:
        """The records as they begin: as soon as there is one, the schedule's slots are known by arithmetic."""
        self.fleet.tend()
        found = self._records()
        # From the anchor on: the first slots may have been fired before all of them were seen.
        began = {name: replace(record, cursor=record.anchor) for name, record in found.items()}
        return began if ENTRIES.keys() <= began.keys() else {}

    def _records(self) -> dict[str, Record]:
        kept = self.fleet.client.hgetall(self.fleet.keys.records)
        return {name.decode(): Record.parse(text) for name, text in kept.items()}

    def _harm(self) -> None:
        """One fault after the other, until the time is up, and half of them are done: a slow machine takes longer."""
        ends = time.monotonic() + self.options.minutes * 60
        pause = self.options.minutes * 60 / len(self.kinds)
        due = told = time.monotonic()
        half = len(self.kinds) // 2
        while time.monotonic() < ends or len(self.kinds) > half:
            self.fleet.tend()
            now = time.monotonic()
            if now - told >= 15:
                told = now
                self._tell()
            if self.kinds and now >= due:
                # The first in the list that somebody is fit for.
                done = next((kind for kind in self.kinds[:8] if self.fleet.harm(kind)), None)
                if done is not None:
                    self.kinds.remove(done)
                    due = time.monotonic() + pause * self.dice.uniform(0.2, 1.4)
            time.sleep(0.02)

    def _tell(self) -> None:
        self.loads.append(load())
        leader = self.fleet.leader()
        faults = Counter(fault.kind for fault in self.fleet.faults)
        self.say(f"{time.monotonic() - self.began:6.0f} s  leader {leader}, load {load()}, {dict(faults)}")

    def _wait_for_progress(self) -> None:
        """Every schedule of less than a minute fires again: nothing has stalled for good."""
        names = [name for name, entry in ENTRIES.items() if entry.period is not None]
        before = {name: record.fired for name, record in until(self._records, what="Redis").items()}

        def behind() -> list[str]:
            self.fleet.tend()
            now = self._records()
            return [name for name in names if now[name].fired <= before[name]]

        try:
            until(lambda: not behind(), within=PATIENCE, what="each schedule to fire once more", every=0.5)
        except AssertionError:
            self.stalled = behind()
        else:
            self.stalled = []

    def _report(self, anchors: dict[str, Record]) -> Report:
        fleet, options = self.fleet, self.options
        history = {}
        for name in ENTRIES:
            lines = fleet.client.lrange(fleet.keys.history(name), 0, -1)
            history[name] = [json.loads(line) for line in reversed(lines)]
        messages = None if fleet.rabbitmq else published(self.directory / "redis", b"soak")
        account = judge(anchors, self._records(), history, Notes.read(fleet.out), messages)
        with (self.directory / "faults.txt").open("w") as file:
            for fault in sorted(fleet.faults, key=lambda fault: fault.at):
                begin, end = fault.at - self.began, fault.until - self.began
                file.write(f"{begin:9.3f} {end:9.3f} {fault.kind:16} {fault.beat} {fault.more}\n")
        return Report(
            broker=options.broker,
            server=options.server,
            seed=options.seed,
            minutes=options.minutes,
            ttl=options.ttl,
            beats=options.beats,
            faults=dict(Counter(fault.kind for fault in fleet.faults)),
            undone=len(self.kinds),
            in_bursts=[fault.more for fault in fleet.faults if fault.kind == "stop in a burst"],
            account=account,
            stalled=self.stalled,
            exits=fleet.exits,
            loads=self.loads[:1] + self.loads[1:-1][:: max(1, len(self.loads) // 6)] + self.loads[-1:],
            wall=time.monotonic() - self.began,
        )


def beat_soak(argv: Sequence[str], *, directory: Path, say: Callable[[str], Any] = lambda _: None) -> Report:
    """Run one with the options of the command line, in an empty *directory*."""
    return BeatSoak(_options(argv), directory, say).run()


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.beat_soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="how long faults are done (default 20)")
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis", help="which Redis")
    parser.add_argument("--ttl", type=float, default=5.0, help="hardened_beat_ttl, in seconds (default 5)")
    parser.add_argument("--beats", type=int, default=3)
    parser.add_argument("--every", type=float, default=6.0, help="seconds between two faults, about (default 6)")
    parser.add_argument("--restarts", type=int, default=3, help="kills of each server besides (default 3)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--keep", type=Path, help="a new folder for logs, notes and the servers' files; kept")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = _options(argv)
    directory = options.keep or Path(tempfile.mkdtemp(prefix="beat-soak-"))
    # The seed is named even if it was drawn here.
    report = beat_soak(
        [*argv, "--seed", str(options.seed)],
        directory=directory,
        say=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201 - a command
    )
    print("\n".join(report.lines()))  # noqa: T201 - a command
    if report.clean and options.keep is None:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"logs and notes: {directory}", file=sys.stderr)  # noqa: T201 - a command
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
