"""Jobs with checkpoints in real workers: what stops, fails and is redriven goes on where it was."""

from __future__ import annotations

import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from redis import Redis

from celery_hardened import Hardening, Query
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.checkpoint_app import CHECKPOINTS, done, runs
from tests.support.delivery_app import conf
from tests.support.letters import letter_of, letters
from tests.support.notes import notes
from tests.support.redis_server import RedisServer
from tests.support.until import until
from tests.support.worker import WorkerProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow]

REDIS = pytest.mark.parametrize("broker", ["redis"], indirect=True)

LEASE = 9.0
"""Nothing here waits for the end of one: a worker that stands still for some seconds keeps its job."""

COUNT, SECONDS = 150, 0.2
"""A job of half a minute: a busy machine needs most of that to start the worker that is to go on."""


class Scene:
    """A job runs in a worker that will be told to stop; another one is there to go on."""

    def __init__(
        self, start_worker: StartWorker, load_project: LoadProject, out: Path, *, env: Any = None, **options: Any
    ) -> None:
        settings = {"hardened_lease": LEASE, **options.pop("settings", {})}
        self.out = out
        self.env = {**conf(**settings), **(env or {})}
        self.project: ModuleType = load_project(CHECKPOINTS, env=self.env)
        self.first: WorkerProcess = start_worker(CHECKPOINTS, concurrency=1, env=self.env, **options)
        self.result = self.project.units.delay("job", COUNT, SECONDS, options.pop("every", 60.0))
        until(lambda: len(done(out, "job")) >= 3, what="the job to begin")
        self.second: WorkerProcess = start_worker(CHECKPOINTS, concurrency=1, env=conf(hardened_lease=LEASE))

    def went_on(self) -> None:
        """Exactly once each unit, in two runs of one attempt; nobody is blamed."""
        assert self.result.get(timeout=120) == "job"
        assert done(self.out, "job") == list(range(COUNT))
        assert [(run.node, run.retries) for run in runs(self.out, "job")] == [
            (self.first.name, 0),
            (self.second.name, 0),
        ]
        assert letters(self.project) == []
        assert [line for line in notes(self.out, "signals") if "success" not in line] == []
        until(lambda: deaths(self.project) == [], within=20, what="no death to be on record")


def deaths(project: ModuleType) -> list[str]:
    """Records of deaths. A mark that says "given back on purpose" is none."""
    hardening: Any = Hardening.of(project.app)
    keys = [key.decode() for key in hardening.redis.scan_iter(match="*:death:*")]
    return [key for key in keys if ":returned:" not in key]


# --- a worker that stops ----------------------------------------------------------------------------------------


def test_sigterm(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """
    The loop saves and hands the job back within a unit, though it had not saved before; the worker ends at
    once with exit code 0, and the other one goes on with the next unit. No death, no attempt.
    """
    scene = Scene(start_worker, load_project, out)
    scene.first.signal(signal.SIGTERM)
    assert scene.first.wait(within=60) == 0
    assert len(done(out, "job")) < COUNT, "the job was over before it could matter"
    scene.went_on()


@REDIS
@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_sigterm_in_pools_without_processes(
    pool: str, start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    scene = Scene(start_worker, load_project, out, pool=pool)
    scene.first.signal(signal.SIGTERM)
    assert scene.first.wait(within=60) == 0
    assert len(done(out, "job")) < COUNT, "the job was over before it could matter"
    scene.went_on()


@REDIS
@pytest.mark.parametrize("args", [("--max-tasks-per-child", "1"), ("--autoscale", "2,1")])
def test_sigterm_and_children_forked_later(
    args: tuple[str, ...], start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """A child that replaces another, or that autoscaling adds, is told as well."""
    env = conf(hardened_lease=LEASE)
    project = load_project(CHECKPOINTS, env=env)
    worker = start_worker(CHECKPOINTS, concurrency=1, env=env, args=args)
    first = set(worker.children())
    assert project.fine.delay("before").get(timeout=60) == "before"
    if args[0] == "--autoscale":
        project.units.delay("beside", 2 * COUNT, SECONDS)
        until(lambda: len(done(out, "beside")) >= 1, what="the first child to be busy")
    result = project.units.delay("job", COUNT, SECONDS)
    until(lambda: len(done(out, "job")) >= 3, within=60, what="the job to begin")
    assert runs(out, "job")[0].pid not in first
    worker.signal(signal.SIGTERM)
    assert worker.wait(within=60) == 0
    assert len(done(out, "job")) < COUNT, "the job was over before it could matter"
    start_worker(CHECKPOINTS, concurrency=2, env=env)
    assert result.get(timeout=120) == "job"
    assert done(out, "job") == list(range(COUNT))


@REDIS
def test_soft_shutdown(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """
    SIGQUIT to a worker that waits before it cuts tasks short: the loop saves at once, and when the
    wait is over the job goes on elsewhere. Nothing is done twice.
    """
    settings = {"worker_soft_shutdown_timeout": 4.0}
    scene = Scene(start_worker, load_project, out, settings=settings, env={"REMAP_SIGTERM": "SIGQUIT"})
    scene.first.signal(signal.SIGTERM)
    scene.first.wait(within=60)
    assert len(done(out, "job")) < COUNT, "the job was over before it could matter"
    scene.went_on()


@REDIS
def test_cold_shutdown(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """SIGQUIT without a wait cuts it short: at most the unit it was in, and what *every* had not saved, comes again."""
    project = load_project(CHECKPOINTS, env=conf(hardened_lease=LEASE))
    first = start_worker(CHECKPOINTS, concurrency=1, env=conf(hardened_lease=LEASE))
    result = project.units.delay("job", 60, 0.1, 0.0)
    until(lambda: len(done(out, "job")) >= 3, what="the job to begin")
    start_worker(CHECKPOINTS, concurrency=1, env=conf(hardened_lease=LEASE))
    first.signal(signal.SIGQUIT)
    assert result.get(timeout=120) == "job"
    assert set(done(out, "job")) == set(range(60))
    assert len(done(out, "job")) <= 61
    assert letters(project) == []
    assert deaths(project) == []


def test_stops_without_end_are_no_deaths(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Five deploys in the middle of one job, more than the deaths it may have: each unit once, no letter."""
    env = conf(hardened_lease=LEASE)
    project = load_project(CHECKPOINTS, env=env)
    result = project.units.delay("job", COUNT, SECONDS, 60.0)
    for _ in range(5):
        before = len(done(out, "job"))
        worker = start_worker(CHECKPOINTS, concurrency=1, env=env)
        until(lambda before=before: len(done(out, "job")) > before + 1, within=60, what="it to go on")
        worker.signal(signal.SIGTERM)
        assert worker.wait(within=60) == 0
    start_worker(CHECKPOINTS, concurrency=1, env=env)
    assert result.get(timeout=120) == "job"
    assert done(out, "job") == list(range(COUNT))
    assert letters(project) == []
    assert {run.retries for run in runs(out, "job")} == {0}


# --- a record that is gone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["units", "keyed", "early"])
def test_a_record_that_is_gone_loses_no_work(
    task: str, start_worker: StartWorker, load_project: LoadProject, out: Path, valkey: RedisServer
) -> None:
    """
    Everything of ours is flushed in the middle of a job, but its message is with the broker. The job writes its
    position anew and goes on with the next unit: no unit twice, none lost. With a key, which anybody may claim
    now, it comes back after a lease and claims it again before it goes on.
    """
    url = valkey.database()
    env = conf(hardened_lease=2.0 if task == "keyed" else LEASE, hardened_redis_url=url)
    project = load_project(CHECKPOINTS, env=env)
    start_worker(CHECKPOINTS, concurrency=1, env=env)
    result = getattr(project, task).delay("job", 40, 0.1)
    until(lambda: len(done(out, "job")) >= 5, within=60, what="the job to be under way")
    with Redis.from_url(url) as client:
        client.flushdb()
    assert result.get(timeout=90) == "job"
    assert done(out, "job") == list(range(40))
    assert notes(out, "done") == ["job"]
    assert len(runs(out, "job")) == (2 if task == "keyed" else 1)
    assert letters(project) == []


# --- failures ---------------------------------------------------------------------------------------------------


@REDIS
def test_a_redrive_goes_on_where_it_was(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Twenty mails, the eighth address is wrong: after the fix a redrive sends the rest, and none twice."""
    start_worker(CHECKPOINTS)
    project = load_project(CHECKPOINTS)
    result = project.mails.delay("mails", 20, 7)
    letter = letter_of(project, result.id).letter
    assert letter.reason == "permanent"
    assert done(out, "mails") == list(range(7))
    (out / "fixed").touch()
    hardening: Any = Hardening.of(project.app)
    hardening.redrive(Query(ids=(letter.id,)), by="me", why="fixed")
    until(lambda: len(done(out, "mails")) == 20, within=60, what="the rest to be sent")
    assert done(out, "mails") == list(range(20))


@REDIS
def test_every_key_has_an_end(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """After success, failure and in the middle of a job, no record of a checkpoint lives for ever."""
    start_worker(CHECKPOINTS)
    project = load_project(CHECKPOINTS)
    project.units.delay("ends", 2)
    failed = project.mails.delay("fails", 5, 2)
    project.units.delay("goes-on", 600, 0.1)
    letter_of(project, failed.id)
    until(lambda: "ends" in notes(out, "done") and done(out, "goes-on"), within=60, what="all to have begun")
    hardening: Any = Hardening.of(project.app)
    keys = list(hardening.redis.scan_iter(match="*:checkpoint:*"))
    assert len(keys) == 3

    def lifetimes() -> list[int]:
        return sorted(hardening.redis.ttl(key) for key in keys)

    # The job that has ended says so before its record is told.
    until(lambda: 0 < lifetimes()[0] <= 3600, what="the record of the job that ended to have its end")
    kept = lifetimes()
    assert all(hardening.settings.kept_for - 3600 < ttl <= hardening.settings.kept_for for ttl in kept[1:])
