"""A soak: workers under load are killed, frozen and cut off again and again, and every task is accounted for.

::

    python -m tests.chaos.soak --kills 200 --tasks 100000

A private server with AOF, several prefork workers with a TCP proxy each, and a steady feed of
tasks, of which some last, some are delayed, some are less urgent and some fail at first. Faults are
drawn from a seeded dice as the work goes on: SIGKILL of a pool child or of a whole worker (started
again at once), SIGSTOP for longer than the lease, lines reset, closed, refused or gone silent, and the
server killed and started again on its files.

In the end it waits until all is done and says what was lost (accepted, and neither ended nor a dead
letter) and what was started twice: each repeat needs a fault that hit the earlier start before its ack
(`tests.chaos.soak_ledger`). It exits with 1 if anything is lost or unexplained.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from celery_hardened import Hardening, Query
from celery_hardened.settings import Settings
from tests.chaos.soak_fleet import APP, Fleet, plan
from tests.chaos.soak_ledger import Notes, judge, recoveries
from tests.chaos.soak_producer import Producer, project
from tests.chaos.soak_report import Report, missing, whereabouts

#: Seconds between two looks at what the workers wrote.
_LOOK: Final = 0.2


class Soak:
    """One run, from an empty server to a report."""

    def __init__(self, options: argparse.Namespace, directory: Path, say: Callable[[str], Any]) -> None:
        self.options = options
        self.directory = directory
        self.say = say
        self.dice = random.Random(options.seed)
        self.kinds = plan(self.dice, kills=options.kills, restarts=options.restarts)
        self.fleet = Fleet(
            directory,
            server=options.server,
            delivery=options.delivery,
            lease=options.lease,
            workers=options.workers,
            concurrency=options.concurrency,
            dice=self.dice,
        )
        self.notes = Notes(self.fleet.out)
        self.client = Redis.from_url(self._url)
        self.buried: dict[int, str] = {}
        self.began = self.last = time.monotonic()

    @property
    def _url(self) -> str:
        return f"redis://127.0.0.1:{self.fleet.server.port}/1"

    def run(self) -> Report:
        options, fleet = self.options, self.fleet
        try:
            with project(self.directory / "producer", APP, fleet.environment(fleet.server.port)) as module:
                producer = Producer(
                    module,
                    self._url,
                    tasks=options.tasks,
                    lease=options.lease,
                    dice=random.Random(options.seed + 1),
                )
                fleet.start()
                producer.start()
                try:
                    self._harm_and_wait(producer, Hardening.expect(module.app))
                finally:
                    producer.ending.set()
                    producer.join(30)
                places = self._settle()
                return self._report(producer, places)
        finally:
            fleet.stop()

    # --- while it runs ------------------------------------------------------------------------

    def _harm_and_wait(self, producer: Producer, hardening: Hardening) -> None:
        """Do the faults as the tasks end, until all ended or nothing has moved for too long."""
        due = self._moments()
        looked = moved = told = time.monotonic()
        seen = 0
        while True:
            self.fleet.tend()
            now = time.monotonic()
            if now - looked >= _LOOK:
                looked = now
                self.notes.read()
                if self.notes.lines != seen:
                    seen, moved = self.notes.lines, now
                    self.last = now
                if now - told >= 15:
                    told = now
                    self._tell(producer)
                if not producer.is_alive() and not due:
                    if len(self.notes.ended) + 500 > producer.accepted:
                        self._dig(hardening)
                    if len(self.notes.ended | self.buried.keys()) >= producer.accepted:
                        return
                if now - moved > self.options.patience:
                    self.say(f"nothing has moved for {self.options.patience:g} s")
                    self._dig(hardening)
                    return
            if due and len(self.notes.ended) >= due[0] and self.fleet.harm(self.kinds[-len(due)], self.notes.workers):
                due.pop(0)
            time.sleep(0.02)

    def _moments(self) -> list[float]:
        """How many tasks have ended when each fault is done: the last comes while there still is work."""
        each = self.options.tasks / (len(self.kinds) + 1)
        return [each * (number + self.dice.random()) for number in range(len(self.kinds))]

    def _tell(self, producer: Producer) -> None:
        self.say(
            f"{time.monotonic() - self.began:6.0f} s  {len(self.notes.ended)} of {producer.accepted} ended, "
            f"{len(self.fleet.faults)} faults, load {os.getloadavg()[0]:.1f}"
        )

    def _dig(self, hardening: Hardening) -> None:
        """Note what has become a dead letter."""
        try:
            letters = list(hardening.dead_letters.find(Query(), limit=500).letters)
        except (OSError, RedisError):
            return
        for stored in letters:
            word, _, number = str(stored.letter.task_id).partition("-")
            if word == "soak" and number.isdigit():
                self.buried[int(number)] = stored.letter.reason

    def _settle(self) -> dict[int, list[str]]:
        """Wait until the broker is empty too: a message that is left runs once more. What is left after that."""
        self.fleet.calm()
        deadline = time.monotonic() + 4 * self.options.lease + 20
        while True:
            self.fleet.tend()
            try:
                places = whereabouts(self.client)
            except (OSError, RedisError):
                places = {-1: ["the server does not answer"]}
            self.notes.read()
            if not places or time.monotonic() > deadline:
                return places
            time.sleep(0.5)

    # --- what came of it ------------------------------------------------------------------------

    def _report(self, producer: Producer, places: dict[int, list[str]]) -> Report:
        options, fleet, notes = self.options, self.fleet, self.notes
        report = Report(
            delivery=options.delivery if hasattr(Settings, "redis_delivery") else "stock",
            server=options.server,
            seed=options.seed,
            lease=options.lease,
            workers=f"{options.workers} workers of {options.concurrency}",
            tasks=producer.accepted,
            kills=dict(Counter(fault.kind for fault in fleet.faults)),
            dead_letters=dict(Counter(self.buried.values())),
            started=sum(len(starts) for starts in notes.starts.values()),
            unsure=len(producer.unsure),
            exits=[f"{name} at {at - self.began:.1f} with {code}: {said}" for at, name, code, said in fleet.exits],
            feeding=self.last - self.began,
            wall=time.monotonic() - self.began,
        )
        report.lost = missing(notes, producer.accepted, set(self.buried), places, began=self.began)
        report.left_over = [
            f"task {number} in {where}"
            for number, where in sorted(places.items())
            if number in notes.ended or number in self.buried or number < 0
        ]
        repeats = judge(notes, fleet.faults, unsure=producer.unsure, longest=producer.longest)
        report.take(repeats, recoveries(notes, fleet.faults, but=producer.less_urgent), began=self.began)
        self._keep_faults()
        return report

    def _keep_faults(self) -> None:
        """Beside the notes, for whoever looks into a finding: begin, end, kind, process ids."""
        with (self.directory / "faults.txt").open("w") as file:
            for fault in sorted(self.fleet.faults, key=lambda fault: fault.at):
                begin, end = fault.at - self.began, fault.until - self.began
                file.write(f"{begin:9.3f} {end:9.3f} {fault.kind} {fault.worker} {fault.child}\n")


def soak(argv: Sequence[str], *, directory: Path, say: Callable[[str], Any] = lambda _: None) -> Report:
    """Run one with the options of the command line, in an empty *directory*."""
    return Soak(_options(argv), directory, say).run()


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="faults in all, restarts included (default 200)")
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks to publish (default 100000)")
    parser.add_argument("--restarts", type=int, default=2, help="kills of the server among them (default 2)")
    parser.add_argument("--lease", type=float, default=5.0, help="hardened_lease, in seconds (default 5)")
    parser.add_argument("--delivery", choices=("hardened", "stock"), default="hardened")
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis")
    parser.add_argument("--workers", type=int, default=3, help="prefork workers (default 3)")
    parser.add_argument("--concurrency", type=int, default=3, help="children of each (default 3)")
    parser.add_argument("--patience", type=float, default=90.0, help="seconds without any progress until it gives up")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--keep", type=Path, help="a new folder for logs, notes and the server's files; kept")
    options = parser.parse_args(argv)
    if options.restarts > options.kills:
        parser.error("--restarts are part of --kills")
    return options


def main(argv: Sequence[str]) -> int:
    options = _options(argv)
    directory = options.keep or Path(tempfile.mkdtemp(prefix="soak-"))
    # The seed is named even if it was drawn here.
    report = soak(
        [*argv, "--seed", str(options.seed)],
        directory=directory,
        say=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201 - a command
    )
    text = json.dumps(report.as_json(), indent=2) if options.json else "\n".join(report.lines())
    print(text)  # noqa: T201 - a command
    if report.clean and options.keep is None:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"logs and notes: {directory}", file=sys.stderr)  # noqa: T201 - a command
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
