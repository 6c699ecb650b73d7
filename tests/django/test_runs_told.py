"""Run history end to end: real beats, real workers, and what the rows say in the end."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django_celery_beat.models import ClockedSchedule, PeriodicTask, PeriodicTasks
from redis import Redis

from celery_hardened.beat.names import Keys
from tests.fixtures.beats import BeatProcess, StartBeat
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support import django_project
from tests.support.django_runs import runs
from tests.support.django_schedules import every, task
from tests.support.notes import notes
from tests.support.until import until

APP = (Path(__file__).parents[1] / "support" / "history_app.py").read_text()

SCHEDULER = "celery_hardened.contrib.django.scheduler:DatabaseScheduler"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
    pytest.mark.parametrize("schedules", ["sqlite"], indirect=True),
]


@pytest.fixture
def env() -> dict[str, str]:
    return django_project.environment()


def beat(start_beat: StartBeat, env: dict[str, str]) -> BeatProcess:
    return start_beat(APP, scheduler=SCHEDULER, env=env)


def once(name: str) -> Any:
    """A task that runs once, soon."""
    soon = ClockedSchedule.objects.create(clocked_time=datetime.now(timezone.utc) + timedelta(seconds=2))
    return task(name, task=f"proj.{name}", clocked=soon, one_off=True)


def only(schedule: str, **wanted: Any) -> Any:
    """The one row of *schedule* once it says what is *wanted*."""

    def row() -> Any:
        found = runs(schedule=schedule)
        assert len(found) <= 1
        return found[0] if found and all(getattr(found[0], key) == value for key, value in wanted.items()) else None

    return until(row, within=90, what=f"{schedule} to be told of as {wanted}")


def test_each_story_is_told(
    schedules: str, start_beat: StartBeat, start_worker: StartWorker, env: dict[str, str]
) -> None:
    """A success, a success after two retries, a dead letter, a process that was lost, and a contained task."""
    start_worker(APP, env=env)
    beat(start_beat, env)
    for name in ("tick", "flaky", "broken", "killed_once", "plain"):
        once(name)
    row = only("tick", outcome="success")
    assert (row.verdict, row.attempts, row.worker, row.error, row.dead_letter) == ("fired", 1, "w1@test", "", "")
    second = timedelta(seconds=1)  # of two hosts' clocks, and of one that is set
    assert row.slot - second < row.decided < row.ended + second
    assert row.started < row.ended + second
    assert 0 <= row.duration < 60
    row = only("flaky", outcome="success")
    assert (row.attempts, row.error) == (3, "")
    row = only("broken", outcome="failure")
    assert (row.attempts, row.error, row.dead_letter) == (1, "ValueError", f"{row.task_id}-0-0")
    row = only("killed_once", outcome="success")
    assert (row.attempts, row.deaths) == (1, 1)
    assert only("plain", outcome="success").attempts == 1


def test_a_beat_killed_again_and_again(
    schedules: str, start_beat: StartBeat, start_worker: StartWorker, env: dict[str, str], out: Path
) -> None:
    """SIGKILL of the leader, four times: each run that the worker has seen is one row, and has ended well."""
    start_worker(APP, env=env)
    every(1, name="often", task="proj.tick")
    seen = 0
    for _ in range(4):
        leader = beat(start_beat, env)
        until(lambda: len(notes(out, "runs")) >= seen + 2, within=60, what="two runs")  # noqa: B023
        leader.kill()
        seen = len(notes(out, "runs"))
    beat(start_beat, env)
    PeriodicTask.objects.get(name="often").delete()  # nothing more is fired
    ran = notes(out, "runs")
    until(
        lambda: {row.task_id for row in runs(outcome="success")} >= set(ran),
        within=60,
        what="all runs to be told of",
    )
    ids = [row.task_id for row in runs(verdict="fired")]
    assert len(ids) == len(set(ids))


def test_a_worker_that_is_killed(
    schedules: str, start_beat: StartBeat, start_worker: StartWorker, env: dict[str, str], out: Path
) -> None:
    """SIGKILL of the whole worker: the run that its message leads to elsewhere tells the end."""
    first = start_worker(APP, env=env)
    beat(start_beat, env)
    once("gated")
    until(lambda: notes(out, "starts"), within=60, what="it to start")
    assert only("gated", verdict="fired").outcome == ""
    first.kill_group()
    start_worker(APP, env=env)
    until(lambda: len(notes(out, "starts")) >= 2, within=90, what="it to start elsewhere")
    (out / "gate").touch()
    assert only("gated", outcome="success").worker == "w3@test"


def test_only_scheduled_tasks_are_reported(
    schedules: str,
    start_worker: StartWorker,
    env: dict[str, str],
    environment: dict[str, str],
    out: Path,
    load_project: LoadProject,
) -> None:
    """Tasks that somebody has sent are no matter of a schedule: their worker writes no report of them."""
    start_worker(APP, env=env)
    proj = load_project(APP)
    for _ in range(20):
        proj.tick.delay()
    proj.broken.delay()
    until(lambda: len(notes(out, "runs")) == 20, within=60, what="them to run")
    redis: Any = Redis.from_url(environment["RECORDS_URL"])
    assert redis.exists(Keys(environment["KEY_PREFIX"]).runs) == 0
    redis.close()


def test_the_task_that_prunes(
    schedules: str, start_beat: StartBeat, start_worker: StartWorker, env: dict[str, str]
) -> None:
    """Scheduled like any other, it keeps so many rows, and is in the history itself."""
    more = {**env, "CONF": "{'hardened_run_history_max_count': 5}"}
    start_worker(APP, env=more)
    beat(start_beat, more)
    every(1, name="often", task="proj.tick")
    until(lambda: len(runs(outcome="success")) >= 12, within=90, what="rows")
    # Again and again: rows come in between its run and the end of the others.
    every(2, name="tidy", task="celery_hardened.prune_schedule_runs")
    until(lambda: runs(schedule="tidy"), within=60, what="it to run")
    PeriodicTask.objects.filter(name="often").update(enabled=False)
    PeriodicTasks.update_changed()
    until(lambda: len(runs()) <= 10, within=60, what="rows to go")
