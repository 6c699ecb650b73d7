"""A project with 5,000 rows of django-celery-beat installs ours, migrates and changes its scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from celery_hardened.beat.names import task_id_of
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import StartWorker
from tests.support import django_plain_settings, django_settings
from tests.support.notes import notes
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

#: Seconds between two runs of those that run often: so long that a worker is never half of it late.
PERIOD = 6.0

OFTEN, MINUTELY, ROWS = 30, 5, 5000

APP = """
import os
import time

from celery import Celery
from celery.signals import before_task_publish

from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(task_default_queue=os.environ["QUEUE"], beat_max_loop_interval=1)
base = None
if os.environ.get("HARDENED"):
    from celery_hardened import HardenedTask as base, harden
    app.conf.update(hardened_redis_url=os.environ["RECORDS_URL"], hardened_key_prefix=os.environ["KEY_PREFIX"])
    app.conf.hardened_beat_grace = 120.0  # what one beat begins with five thousand rows, on a busy machine
    harden(app)
else:

    @before_task_publish.connect
    def published(headers, **_):
        headers["published_at"] = time.time()


@app.task(bind=True, **({"base": base} if base else {}))
def tick(self, name):
    slot = self.execution.slot.timestamp() if base and self.execution.slot else "-"
    note("runs", name, self.request.get("published_at") or time.time(), slot, self.request.id)
"""

#: What such a project has: of each kind some, and most of them not due for a while.
FILL = """
from datetime import datetime, timedelta, timezone
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, PeriodicTasks
now = datetime.now(timezone.utc)
often = IntervalSchedule.objects.create(every={period}, period="seconds")
hourly = IntervalSchedule.objects.create(every=3, period="hours")
minutely = CrontabSchedule.objects.create()
far = (now + timedelta(hours=6)).astimezone(timezone.utc)
daily = CrontabSchedule.objects.create(minute=str(far.minute), hour=str(far.hour), timezone="UTC")
over = ClockedSchedule.objects.create(clocked_time=now - timedelta(days=3))
rows = [dict(interval=often) for _ in range({often})] + [dict(crontab=minutely) for _ in range({minutely})]
while len(rows) < {rows}:
    n = len(rows)
    rows.append([
        dict(interval=hourly, last_run_at=now - timedelta(minutes=n % 100)),
        dict(crontab=daily, last_run_at=now - timedelta(hours=18)),
        dict(crontab=minutely, enabled=False, last_run_at=now - timedelta(hours=n)),
        dict(clocked=over, one_off=True, enabled=False, last_run_at=now - timedelta(days=3)),
    ][n % 4])
PeriodicTask.objects.bulk_create(
    [PeriodicTask(name=f"row {{n}}", task="proj.tick", args=f'["row-{{n}}"]', **row) for n, row in enumerate(rows)],
    batch_size=500,
)
PeriodicTasks.update_changed()
"""

ENABLED = """
from django_celery_beat.models import PeriodicTask
import json
rows = PeriodicTask.objects
print(json.dumps({"all": rows.count(), "enabled": rows.filter(enabled=True).count()}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "database"
    made.mkdir()
    return made


def environment(folder: Path, *, hardened: bool) -> dict[str, str]:
    settings = django_settings if hardened else django_plain_settings
    env = {"DJANGO_SETTINGS_MODULE": settings.__name__, django_settings.FOLDER_VARIABLE: str(folder)}
    return {**env, "HARDENED": "yes"} if hardened else env


def manage(env: dict[str, str], script: str) -> str:
    """Run *script* in the project."""
    source = f"import django; django.setup()\n{script}"
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, **env},
        cwd=root,
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
    )
    return ran.stdout


MIGRATE = "from django.core.management import call_command; call_command('migrate', run_syncdb=True, verbosity=0)"


def runs(out: Path) -> dict[str, list[tuple[float, float | None, str]]]:
    """When each was published by the other scheduler, or ran; for which slot (``None``: that one's); as which task."""
    found = defaultdict(list)
    for line in notes(out, "runs"):
        name, at, slot, task_id = line.split()
        found[name].append((float(at), None if slot == "-" else float(slot), task_id))
    return found


@pytest.mark.timeout(400)
def test_five_thousand_rows(start_beat: StartBeat, start_worker: StartWorker, out: Path, folder: Path) -> None:
    """No slot is run twice, none is left out, and what was not due does not run."""
    plain, ours = environment(folder, hardened=False), environment(folder, hardened=True)
    manage(plain, MIGRATE)
    manage(plain, FILL.format(period=int(PERIOD), often=OFTEN, minutely=MINUTELY, rows=ROWS))
    old_worker = start_worker(APP, env=plain)
    old_beat = start_beat(APP, scheduler="django_celery_beat.schedulers:DatabaseScheduler", env=plain, leads=False)
    often = [f"row-{number}" for number in range(OFTEN)]
    minutely = [f"row-{number}" for number in range(OFTEN, OFTEN + MINUTELY)]
    until(lambda: all(len(runs(out)[name]) >= 2 for name in often), within=120, what="runs of the old beat")

    # While the old beat goes on: the app is installed, and the workers are new ones.
    manage(ours, MIGRATE)
    start_worker(APP, env=ours, concurrency=1)  # one after the other, so that the runs so far have no gap
    old_worker.stop()

    def at_rest() -> bool:
        # A signal that meets the old beat in the midst of a publish ends that one, after it was noted as the last run.
        found, now = runs(out), time.time()
        return 5 < now % 60 < 58 and all(max(at for at, *_ in found[name]) + PERIOD - now > 1.0 for name in often)

    until(at_rest, within=120, what="a pause of the old beat")
    old_beat.stop(within=120)  # it writes its last runs down first, row by row
    first = start_beat(APP, scheduler="hardened-django", env=ours)
    start_beat(APP, scheduler="hardened-django", env=ours, leads=False)
    rows = json.loads(manage(ours, ENABLED))
    assert rows["all"] == ROWS + 1  # the old beat has put in celery.backend_cleanup
    assert f"{rows['enabled']} schedules, term 1" in first.log()

    def new(name: str) -> list[float]:
        return sorted(slot for _, slot, _ in runs(out)[name] if slot is not None)

    until(lambda: all(len(new(name)) >= 3 for name in often), within=120, what="runs of the new beats")
    until(lambda: all(new(name) for name in minutely), within=120, what="a minute to be over")
    first.stop()  # what it has fired is in the tables
    found = runs(out)  # once: the other beat goes on
    slots_of = {name: sorted(slot for _, slot, _ in found[name] if slot is not None) for name in often + minutely}
    for name in often:
        slots = slots_of[name]
        assert {round(b - a, 3) for a, b in pairwise(slots)} == {PERIOD}, name
        last = max(at for at, slot, _ in found[name] if slot is None)
        assert abs(slots[0] - PERIOD - last) < PERIOD / 2, (name, slots, last)
    for name in minutely:
        # The old beat ran some moments after the minute, and the new ones say which minute it was.
        minutes = sorted(int((at if slot is None else slot) // 60) for at, slot, _ in found[name])
        assert minutes == list(range(minutes[0], minutes[0] + len(minutes))), name
    for name in often + minutely:
        row = name.replace("-", " ")
        assert sorted(i for _, slot, i in found[name] if slot is not None) == sorted(
            task_id_of(row, slot) for slot in slots_of[name]
        )
    assert set(found) == {*often, *minutely}
