"""One set of schedules for both schedulers, a beat whose clock a test sets, and what it has fired.

Nobody consumes: the messages in the queue are the ledger, in the order in which they were sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.store import BeatStore
from celery_hardened.marks import HEADER
from tests.fixtures.beats import BeatProcess, StartBeat
from tests.fixtures.processes import StartProcess
from tests.support.until import until
from tests.support.wallshift import WallShift

APP = (Path(__file__).with_name("beat_app.py")).read_text()

SCHEDULERS = ("hardened", "hardened-django")

#: Fires each minute, so that it tells how far a beat has come; what it misses is nobody's concern.
CLOCK = "clock"

_ROWS = """
import json, os, sys
import django
django.setup()
from django.core.management import call_command
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask
from celery_hardened.contrib.django.models import SchedulePolicy
call_command("migrate", run_syncdb=True, verbosity=0, interactive=False)
for one in json.loads(os.environ["TIMED"]):
    if one["every"] is None:
        minute, hour = one["crontab"].split()
        timing = {"crontab": CrontabSchedule.objects.create(minute=minute, hour=hour, timezone=one["zone"])}
    else:
        timing = {"interval": IntervalSchedule.objects.create(every=one["every"], period="seconds")}
    row = PeriodicTask.objects.create(name=one["name"], task="proj.tick", **timing)
    if one["policy"]:
        SchedulePolicy.objects.create(periodic_task=row, **one["policy"])
"""


@dataclass(frozen=True, slots=True)
class Timed:
    """A schedule that either scheduler may have."""

    name: str
    crontab: str = ""
    """Minute and hour."""

    zone: str = "UTC"
    every: int | None = None
    """Seconds, instead of a crontab."""

    policy: Mapping[str, Any] = field(default_factory=dict)

    def entry(self) -> str:
        """As Python text, for ``beat_schedule``."""
        keys = {"task": "proj.tick", **self.policy}
        if self.every is None:
            minute, hour = self.crontab.split()
            timing = f"crontab(minute={minute!r}, hour={hour!r})"
            keys["timezone"] = self.zone
        else:
            timing = str(self.every)
        return f"{self.name!r}: {{**{keys!r}, 'schedule': {timing}}}"


class Fired(NamedTuple):
    """A message of a schedule's run."""

    slot: datetime
    """UTC."""

    missed: int
    task_id: str
    published: float
    """By the beat's own clock."""


class TimedBeat:
    """Schedules, and one beat after another that fires them by the same clock."""

    def __init__(
        self,
        scheduler: str,
        clock: WallShift,
        environment: Mapping[str, str],
        beats: StartBeat,
        processes: StartProcess,
    ) -> None:
        self.clock = clock
        self._scheduler = scheduler
        self._beats = beats
        self._processes = processes
        self._queue = environment["QUEUE"]
        self._redis = Redis.from_url(environment["BROKER_URL"])
        self.store = BeatStore(self._redis, Keys(environment["KEY_PREFIX"]), history=50)
        # Where the queues are, so are the records: claimed and published in one write.
        self.env = {"RECORDS_URL": environment["BROKER_URL"], **clock.environment}

    def lay(self, folder: Path, timed: Sequence[Timed], *, at: datetime) -> None:
        """Make the schedules at the moment *at*, which the clock is set to."""
        self.clock.set(at)
        timed = [*timed, Timed(CLOCK, "* *", policy={"missed_run": "skip"})]
        if self._scheduler == "hardened":
            self.env["SCHEDULES"] = "{" + ", ".join(one.entry() for one in timed) + "}"
            return
        self.env |= {
            "DJANGO_SETTINGS_MODULE": "tests.support.django_settings",
            "HARDENED_TEST_DJANGO_FOLDER": str(folder),
        }
        told = json.dumps(
            [
                {"name": t.name, "crontab": t.crontab, "zone": t.zone, "every": t.every, "policy": dict(t.policy)}
                for t in timed
            ]
        )
        writing = self._processes("", "python", "-c", _ROWS, env={**self.env, "TIMED": told})
        assert writing.wait(within=120) == 0, writing.log()
        self.clock.set(at)  # again: a busy machine may have needed longer for it than there is to the next slot

    def start(self) -> BeatProcess:
        """A beat that leads, and has decided on each schedule once."""
        beat = self._beats(APP, scheduler=self._scheduler, env=self.env)
        until(lambda: CLOCK in self.store.records(), what="the schedules to have begun", within=60)
        return beat

    def go(self, moment: datetime, *, ahead: float = 0.0) -> None:
        """Set the clock to so many seconds before *moment*, a whole minute; until it was seen to."""
        self.clock.set(moment.timestamp() - ahead - self.clock.now() + self.clock.offset)
        until(lambda: moment in self.slots(CLOCK), what=f"the minute {moment:%d %H:%M} to be fired", within=60)

    def fired(self, name: str) -> list[Fired]:
        """Its runs, first in first."""
        found = []
        for message in reversed(self._redis.lrange(self._queue, 0, -1)):
            headers = json.loads(message)["headers"]
            marks = headers[HEADER]
            if marks["schedule"] == name:
                slot = datetime.fromtimestamp(marks["slot"], timezone.utc)
                found.append(Fired(slot, marks.get("missed", 0), headers["id"], marks["published"]))
        return found

    def slots(self, name: str) -> list[datetime]:
        return [run.slot for run in self.fired(name)]
