"""A real beat on django-celery-beat's tables, and a real worker."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from django_celery_beat.models import ClockedSchedule, PeriodicTask

from tests.fixtures.beats import BeatProcess, StartBeat
from tests.fixtures.processes import StartWorker
from tests.support import django_project
from tests.support.beat_claims import is_claimed
from tests.support.django_schedules import every, task
from tests.support.notes import notes
from tests.support.until import until

APP = (Path(__file__).parents[1] / "support" / "beat_app.py").read_text()

SCHEDULER = "celery_hardened.contrib.django.scheduler:DatabaseScheduler"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
    pytest.mark.parametrize("schedules", ["sqlite"], indirect=True),
]


@pytest.fixture
def beat(schedules: str, start_beat: StartBeat, start_worker: StartWorker) -> BeatProcess:
    """A beat that leads, with a worker for what it sends; their database is this process's."""
    start_worker(APP)
    return start_beat(APP, scheduler=SCHEDULER, env=django_project.environment())


def runs(out: Path, schedule: str) -> list[tuple[float, list[str]]]:
    """Slot, and the rest, of each run of *schedule*."""
    lines = [line.split() for line in notes(out, "runs")]
    return [(float(line[1]), line[2:]) for line in lines if line[0] == schedule]


def test_rows_run_and_edits_take_effect(beat: BeatProcess, out: Path) -> None:
    """A row that is made, re-timed and switched off while a beat runs: as saved, without a restart, each slot once."""
    row = every(1, name="often", task="proj.tick")
    until(lambda: len(runs(out, "often")) >= 3, within=60, what="it to run")
    slots = [slot for slot, _ in runs(out, "often")]
    assert len(slots) == len(set(slots))
    until(lambda: PeriodicTask.objects.get(name="often").total_run_count >= 3, within=20, what="its runs to be counted")
    row = PeriodicTask.objects.get(pk=row.pk)
    row.enabled = False
    row.save()
    until(lambda: "often" not in _fired_again(out), within=60, what="it to stop")


def _fired_again(out: Path) -> set[str]:
    before = len(runs(out, "often"))
    now = datetime.now(timezone.utc).timestamp()
    until(lambda: datetime.now(timezone.utc).timestamp() > now + 3, within=30, what="three periods to pass")
    return {"often"} if len(runs(out, "often")) > before else set()


def test_two_one_offs_and_a_busy_interval(beat: BeatProcess, out: Path) -> None:
    """One-offs of one clocked time run once each, and are off; one of the past and a long interval block nobody."""
    soon = ClockedSchedule.objects.create(clocked_time=datetime.now(timezone.utc) + timedelta(seconds=2))
    past = ClockedSchedule.objects.create(clocked_time=datetime.now(timezone.utc) - timedelta(days=9))
    task("old", task="proj.tick", clocked=past, one_off=True)
    start = datetime.now(timezone.utc) + timedelta(days=1)
    every(86_400, name="long", task="proj.tick", start_time=start)
    for name in ("one", "two"):
        task(name, task="proj.tick", clocked=soon, one_off=True)
    every(1, name="often", task="proj.tick")
    until(lambda: runs(out, "one") and runs(out, "two"), within=60, what="both to run")
    until(
        lambda: not PeriodicTask.objects.filter(name__in=("one", "two"), enabled=True).exists(),
        within=30,
        what="both to be switched off",
    )
    so_far = len(runs(out, "often"))
    until(lambda: len(runs(out, "often")) >= so_far + 3, within=60, what="the interval to go on")
    assert [len(runs(out, name)) for name in ("one", "two", "old", "long")] == [1, 1, 0, 0]


def test_a_one_off_and_a_beat_that_is_killed(
    schedules: str, start_beat: StartBeat, start_worker: StartWorker, environment: dict[str, str], out: Path
) -> None:
    """Killed as soon as it has run, before its row says so: the next beat does not run it again."""
    start_worker(APP)
    env = django_project.environment()
    first = start_beat(APP, scheduler=SCHEDULER, env=env)
    soon = ClockedSchedule.objects.create(clocked_time=datetime.now(timezone.utc) + timedelta(seconds=2))
    task("once", task="proj.tick", clocked=soon, one_off=True)
    until(lambda: runs(out, "once"), within=60, what="it to run")
    # A busy machine may have run it before its beat goes on.
    records = environment["RECORDS_URL"], environment["KEY_PREFIX"]
    until(lambda: not is_claimed(*records, "once"), within=60, what="its beat to know that it is sent")
    first.kill()
    PeriodicTask.objects.filter(name="once").update(enabled=True, total_run_count=0, last_run_at=None)
    every(1, name="often", task="proj.tick")
    start_beat(APP, scheduler=SCHEDULER, env=env)
    until(lambda: len(runs(out, "often")) >= 4, within=60, what="the next beat to fire")
    assert len(runs(out, "once")) == 1
