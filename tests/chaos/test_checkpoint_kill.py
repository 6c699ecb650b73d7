"""Jobs of many units whose workers are killed, frozen, and die at the worst moment."""

from __future__ import annotations

import random
import time
from pathlib import Path

import psutil
import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.checkpoint_app import CHECKPOINTS, done, runs
from tests.support.delivery_app import conf
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.until import until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

LEASE = 5.0
ENV = conf(hardened_lease=LEASE)
UNITS = 160
KILLS = 10


@pytest.mark.timeout(300)
def test_a_job_that_is_killed_ten_times_finishes(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    Its pool process and its whole worker are killed in turn, at random moments. It repeats at most one
    unit for each kill, and is not called poison, though three deaths are the limit.
    """
    project = load_project(CHECKPOINTS, env=ENV)
    dice = random.Random(4713)
    worker = start_worker(CHECKPOINTS, concurrency=1, env=ENV)
    result = project.units.delay("job", UNITS, 0.1)
    for kill in range(KILLS):
        before = len(done(out, "job"))
        until(lambda before=before: len(done(out, "job")) > before + 1, within=60, what="it to go on")
        time.sleep(dice.random() / 8)  # the moment is what is random; nothing is waited for
        assert "job" not in notes(out, "done"), f"it was over before kill {kill}"
        if kill % 2:
            psutil.Process(runs(out, "job")[-1].pid).kill()
        else:
            worker.kill_group()
            worker = start_worker(CHECKPOINTS, concurrency=1, env=ENV)

    assert result.get(timeout=120) == "job"
    assert letters(project) == []
    assert len(runs(out, "job")) == KILLS + 1
    units = done(out, "job")
    assert set(units) == set(range(UNITS))
    assert len(units) - UNITS <= KILLS
    assert all(units.count(unit) <= 2 for unit in set(units)), "one kill repeated more than the unit it hit"


def test_a_batch_resumes_where_it_was_killed(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Fifty mails, the worker dies after twenty: the rest goes out, and at most one of the first twenty twice."""
    project = load_project(CHECKPOINTS, env=ENV)
    worker = start_worker(CHECKPOINTS, concurrency=1, env=ENV)
    result = project.units.delay("mails", 50, 0.05)
    until(lambda: len(done(out, "mails")) >= 20, what="twenty mails to be sent")
    worker.kill_group()
    sent = done(out, "mails")
    start_worker(CHECKPOINTS, concurrency=1, env=ENV)
    assert result.get(timeout=60) == "mails"
    again = done(out, "mails")[len(sent) :]
    assert again in (list(range(len(sent), 50)), list(range(len(sent) - 1, 50)))


def test_a_worker_that_dies_before_the_ack_repeats_nothing(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """The job has succeeded, its message comes back: the loop is at its end already."""
    project = load_project(CHECKPOINTS, env=ENV)
    worker = start_worker(CHECKPOINTS, concurrency=1, env=ENV)
    project.dies_after_success.delay("job", 5)
    until(lambda: not worker.running, what="the worker to die")
    start_worker(CHECKPOINTS, concurrency=1, env=ENV)
    until(lambda: notes(out, "done") == ["job"] * 2, within=60, what="the message to be run again")
    assert done(out, "job") == [0, 1, 2, 3, 4]


def test_a_zombie_cannot_move_the_position_back(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    A worker that is frozen for longer than its lease, or its heartbeat, loses its job to another. When it
    wakes its next save is refused: it does the unit it was in and none after it, and the heir goes on.
    """
    env = conf(hardened_lease=LEASE, broker_heartbeat=4)  # RabbitMQ has no lease, and waits for heartbeats
    project = load_project(CHECKPOINTS, env=env)
    zombie = start_worker(CHECKPOINTS, concurrency=1, env=env)
    result = project.units.delay("job", 60, 0.2)
    until(lambda: len(done(out, "job")) >= 3, what="it to begin")
    zombie.pause()
    at_most = len(done(out, "job")) + 1
    heir = start_worker(CHECKPOINTS, concurrency=1, env=env)
    until(lambda: len(runs(out, "job")) == 2, within=90, what="the heir to take it")
    until(lambda: len(done(out, "job")) >= 8, what="the heir to go on")
    zombie.resume()
    assert result.get(timeout=90) == "job"
    assert [run.node for run in runs(out, "job")] == [zombie.name, heir.name]
    by_zombie = [line for line in notes(out, "units") if int(line.split()[2]) == runs(out, "job")[0].pid]
    assert len(done(out, "job")) <= 61
    assert len(by_zombie) <= at_most
    assert notes(out, "done") == ["job"]
    assert letters(project) == []
