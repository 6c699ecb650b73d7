"""From another scheduler to ours, by the steps of the how-to: no slot is missed, none is fired twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_hardened.beat.names import task_id_of
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import RunCelery, StartWorker
from tests.support import django_settings
from tests.support.notes import notes
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "move-to-hardened-beat.md"

#: Seconds. So much that a beat on a busy machine is never half of it behind its own clock.
PERIODS = {"three": 3.0, "four": 4.0}

APP = """
import os
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab, schedule

from celery_hardened import HardenedTask, harden
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    # Commands and a beat are started between the last run of theirs and the first of ours, on a busy machine.
    hardened_beat_grace=120.0,
    redbeat_redis_url=os.environ["RECORDS_URL"],
    beat_max_loop_interval=1,
    beat_schedule={
        "three": {"task": "proj.tick", "schedule": 3.0, "args": ("three",)},
        "four": {"task": "proj.tick", "schedule": timedelta(seconds=4), "args": ("four",)},
        "yearly": {"task": "proj.tick", "schedule": crontab("0", "0", "*", "1", "1"), "args": ("yearly",)},
    },
)
harden(app)


@app.task(base=HardenedTask, bind=True)
def tick(self, name):
    slot, published = self.execution.slot, self.request.headers["hardened"]["published"]
    note("runs", name, published, slot.timestamp() if slot else "-", self.request.id)
"""


@dataclass(frozen=True)
class Run:
    at: float
    """When its message was published: how late a worker is, is no matter here."""

    slot: float | None
    """``None``: fired by the other scheduler."""

    task_id: str


def runs(out: Path, name: str) -> list[Run]:
    found = []
    for line in notes(out, "runs"):
        of, at, slot, task_id = line.split()
        if of == name:
            found.append(Run(float(at), None if slot == "-" else float(slot), task_id))
    return found


def ours(out: Path, name: str) -> list[float]:
    return sorted(run.slot for run in runs(out, name) if run.slot is not None)


def adopt(run_celery: RunCelery, flag: str, *more: str, source: Path | None = None) -> Any:
    """Run the command of the how-to with *flag* as its first; *source* is where the file is in this test."""
    said = re.findall(r"^ *\$ celery -A proj (hardened schedule adopt .*)$", HOW_TO.read_text(), re.MULTILINE)
    (words,) = [words for words in map(str.split, said) if words[3] == flag and "--since" not in words][-1:]
    return run_celery(APP, *(str(source) if word == "celerybeat-schedule" else word for word in words), *more)


def records(result: Any) -> list[Any]:
    assert result.returncode == 0, result.stderr + result.stdout
    return [json.loads(line) for line in result.stdout.splitlines()]


def run_theirs(
    start_beat: StartBeat, out: Path, scheduler: str, *, env: Mapping[str, str] | None = None, args: Sequence[str] = ()
) -> None:
    """Another scheduler, until it has fired each schedule three times; stopped in order.

    And while nothing is due: a signal that meets it in the midst of a publish ends that one, after it has been noted
    as the schedule's last run.
    """
    beat = start_beat(APP, scheduler=scheduler, env=env, args=args, leads=False)

    def at_rest() -> bool:
        found, now = {name: runs(out, name) for name in PERIODS}, time.time()
        return all(
            len(found[name]) >= 3 and max(run.at for run in found[name]) + period - now > 1.0
            for name, period in PERIODS.items()
        )

    until(at_rest, what="runs of the other scheduler, and a pause of it", within=90)
    beat.stop(within=60)  # it writes its last runs down first


def check(out: Path) -> None:
    """Slots of ours follow the last run of theirs, a period apart, each run once."""
    until(lambda: all(len(ours(out, name)) >= 4 for name in PERIODS), what="four runs of ours", within=90)
    for name, period in PERIODS.items():
        found = runs(out, name)  # once: beat and worker go on
        theirs = [run.at for run in found if run.slot is None]
        slots = sorted(run.slot for run in found if run.slot is not None)
        assert [round((b - a) * 1000) for a, b in pairwise(slots)] == [round(period * 1000)] * (len(slots) - 1), name
        # One period after they last fired it.
        assert abs(slots[0] - period - max(theirs)) < period / 2, (name, slots[0], theirs)
        ids = [run.task_id for run in found if run.slot is not None]
        assert sorted(ids) == sorted(task_id_of(name, slot) for slot in slots)
    assert not runs(out, "yearly")


def test_from_celerys_own_beat(
    start_beat: StartBeat, start_worker: StartWorker, run_celery: RunCelery, out: Path, tmp_path: Path
) -> None:
    """Its file is read, and left as it is; intervals keep their phase, and what fell due meanwhile is fired."""
    start_worker(APP, concurrency=1)  # what was missed comes at once, and in its order
    file = tmp_path / "celerybeat-schedule"
    run_theirs(start_beat, out, "celery.beat:PersistentScheduler", args=["--schedule", str(file)])
    before = {path.name: path.read_bytes() for path in tmp_path.glob("celerybeat-schedule*")}

    dry = records(adopt(run_celery, "--shelve", "--dry-run", "--json", source=file))
    assert {row["name"]: row["outcome"] for row in dry} == dict.fromkeys(["three", "four", "yearly"], "adopted")
    adopted = records(adopt(run_celery, "--shelve", "--json", source=file))
    for row in adopted:
        period = PERIODS.get(row["name"])
        assert period is None or round(row["next"] - row["last_run"], 2) == period
    assert {path.name: path.read_bytes() for path in tmp_path.glob("celerybeat-schedule*")} == before

    start_beat(APP)
    check(out)


def test_from_redbeat(start_beat: StartBeat, start_worker: StartWorker, run_celery: RunCelery, out: Path) -> None:
    """What it keeps in Redis is read and left as it is; while its lock is held nothing is adopted."""
    start_worker(APP, concurrency=1)  # what was missed comes at once, and in its order
    run_theirs(start_beat, out, "redbeat.RedBeatScheduler")

    result = adopt(run_celery, "--redbeat")
    assert result.returncode == 0, result.stderr
    assert "adopted 3 of 3 schedules" in result.stdout
    start_beat(APP)
    check(out)


def test_redbeats_lock_is_heeded(run_celery: RunCelery, environment: dict[str, str]) -> None:
    """A RedBeat that runs, or was killed, has its lock: refused, unless it is said that none runs."""
    with Redis.from_url(environment["RECORDS_URL"]) as client:
        client.zadd("mine::schedule", {"mine:three": 1.0})
        said = {"__type__": "datetime", "year": 2026, "month": 1, "day": 1, "hour": 12, "minute": 0, "second": 0}
        client.hset(
            "mine:three", "meta", json.dumps({"last_run_at": {**said, "microsecond": 250_000, "timezone": 3600}})
        )
        client.set("mine::lock", "held")
    command = ["hardened", "schedule", "adopt", "--redbeat", environment["RECORDS_URL"], "--prefix", "mine:"]
    refused = run_celery(APP, *command)
    assert refused.returncode == 1
    assert "lock is held" in refused.stderr
    rows = {row["name"]: row for row in records(run_celery(APP, *command, "--force", "--json"))}
    assert rows["three"]["last_run"] == 1767265200.25
    assert rows["three"]["next"] == 1767265203.25
    assert rows["four"]["outcome"] == "new"


def test_from_django_celery_beat(
    start_beat: StartBeat, start_worker: StartWorker, run_celery: RunCelery, out: Path, tmp_path: Path
) -> None:
    """Nothing need be adopted: ours goes on from the last runs in the tables."""
    folder = tmp_path / "database"
    folder.mkdir()
    env = {
        "DJANGO_SETTINGS_MODULE": django_settings.__name__,
        django_settings.FOLDER_VARIABLE: str(folder),
    }
    migrate = "import django; django.setup(); from django.core.management import call_command as c; "
    migrate += "c('migrate', run_syncdb=True, verbosity=0)"
    subprocess.run(
        [sys.executable, "-c", migrate],
        env={**os.environ, **env},
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=120,
    )
    start_worker(APP, concurrency=1)  # what was missed comes at once, and in its order
    run_theirs(start_beat, out, "django_celery_beat.schedulers:DatabaseScheduler", env=env)

    listed = run_celery(APP, "hardened", "schedule", "list", "--scheduler", "hardened-django", "--json", env=env)
    assert {"three", "four", "yearly"} <= {row["name"] for row in records(listed)}
    start_beat(APP, scheduler="hardened-django", env=env)
    check(out)
