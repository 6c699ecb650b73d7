"""A message that takes its whole worker down is stopped; those that ran beside it are not blamed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from celery_hardened import Hardening
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letter_of, letters
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until

# On stock Redis delivery a dead worker's messages come back after the visibility timeout.
SOON = {"VISIBILITY": "8"}


#: While the worker sees to the death of one child, the other, which the test has frozen with a job in its
#: pipe, goes on, starts the job and dies of it.
OVERLAP = """

from celery.signals import worker_init


@worker_init.connect
def let_deaths_overlap(**_):
    from celery.concurrency.asynpool import AsynPool

    lost = AsynPool.on_job_process_lost

    def on_job_process_lost(pool, job, pid, exitcode):
        AsynPool.on_job_process_lost = lost
        lost(pool, job, pid, exitcode)
        [other] = pool._pool
        os.kill(other.pid, signal.SIGCONT)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        note("overlaps", other.pid)

    AsynPool.on_job_process_lost = on_job_process_lost


@app.task(bind=True)
def plain_slow(self, order):
    started(self, order)
    time.sleep(600)
"""


def starts(out: Path, task: str) -> int:
    return sum(1 for line in notes(out, "starts") if line.split()[0] == f"proj.{task}")


def test_worker_killer_becomes_poison_and_bystanders_finish(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    A task that kills its whole worker is stopped after as many deaths as it may
    have, one of them alone in its worker; the tasks that ran beside it finish.
    """
    project = load_project(SHOP, env=SOON)
    culprit = project.worker_killer.delay("culprit")
    beside = [project.slow.delay(f"beside-{n}", 1.5) for n in range(2)]

    def poisoned() -> bool:
        return any(s.letter.task_id == culprit.id for s in letters(project, reason="poison"))

    for _ in range(8):  # each start of the culprit ends one worker
        worker = start_worker(SHOP, concurrency=3, env=SOON)
        until(
            lambda worker=worker: not worker.running or poisoned(),
            within=60,
            what="the worker to die or the poison letter",
        )
        if poisoned():
            break

    stored = letter_of(project, culprit.id)
    assert stored.letter.reason == "poison"
    assert stored.letter.deaths >= 3
    assert 3 <= starts(out, "worker_killer") <= 5
    assert [result.get(timeout=60) for result in beside] == ["beside-0", "beside-1"]
    assert project.fine.delay("after").get(timeout=60) == "after"
    assert len(letters(project)) == 1, "a bystander was called poison"


@pytest.mark.parametrize(
    ("killer", "reason", "runs"),
    [("killer", "poison", 3), ("plain_late_killer", "poison", 3), ("plain_killer", "lost", 1)],
)
def test_a_death_while_another_is_seen_to_counts(
    start_worker: StartWorker, load_project: LoadProject, out: Path, killer: str, reason: str, runs: int
) -> None:
    """
    Two pool processes die at once: the second start is a death too, though the worker
    has not read that it began. A task that acks early does not run a second time.
    """
    worker = start_worker(SHOP + OVERLAP, concurrency=2)
    project = load_project(SHOP + OVERLAP)
    inspect = project.app.control.inspect(timeout=10, limit=1)

    def writes() -> int:
        """Jobs written to the pipes of pool processes so far."""
        [stats] = (inspect.stats() or {"": None}).values()
        return sum(int(word) for word in stats["pool"]["writes"]["raw"].split(",")) if stats else 0

    def running() -> list[str] | None:
        [active] = (inspect.active() or {"": None}).values()
        return None if active is None else [request["name"] for request in active]

    project.plain_slow.delay("beside")
    until(lambda: starts(out, "plain_slow") == 1, what="the task beside to start")
    first = int(notes(out, "starts")[0].split()[-1])
    project.fine.delay("warm").get(timeout=60)
    until(lambda: running() == ["proj.plain_slow"], what="the other process to be free")
    [second] = [psutil.Process(pid) for pid in worker.children() if pid != first]
    second.suspend()  # the next job is written to its pipe, and nobody reads it
    before = writes()
    result = getattr(project, killer).delay(killer)
    until(lambda: writes() == before + 1, what="the killer to be handed over")
    worker.kill_child(first)

    stored = letter_of(project, result.id)
    assert notes(out, "overlaps") == [str(second.pid)]
    assert stored.letter.reason == reason
    assert starts(out, killer) == runs
    assert project.fine.delay("after").get(timeout=60) == "after"
    assert starts(out, killer) == runs


def test_graceful_stop_is_no_death(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """
    Six deploys over one long task, and one fetched behind it: both come back
    marked as redelivered, neither is counted as a death, both finish.
    """
    project = load_project(SHOP)
    # So long that it still runs when the signal comes, though a busy machine may let the test wait.
    results = [project.slow.delay("long", 12.0), project.fine.delay("behind")]
    for _ in range(6):
        before = starts(out, "slow")
        worker = start_worker(SHOP, concurrency=1, args=["--prefetch-multiplier", "2"])
        until(lambda before=before: starts(out, "slow") > before, what="the long task to start")
        worker.signal(signal.SIGQUIT)  # cold shutdown: what runs is cut short
        until(lambda worker=worker: not worker.running, within=60, what="the worker to stop")

    start_worker(SHOP, concurrency=2)
    assert [result.get(timeout=90) for result in results] == ["long", "behind"]
    assert letters(project) == []
    hardening = Hardening.of(project.app)
    assert hardening is not None
    # Finished work leaves no record of deaths behind; a mark of a return lapses by itself.
    left = [key for key in hardening.redis.scan_iter(match="*:death:*") if b":returned:" not in key]
    assert left == []


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_first_delivery_sends_no_command_of_ours(
    start_worker: StartWorker, load_project: LoadProject, broker, records_url: str
) -> None:
    """A task that succeeds on its first delivery costs no round trip to our store."""
    from redis import Redis

    start_worker(SHOP)
    project = load_project(SHOP)
    project.fine.delay("warm").get(timeout=30)
    records = Redis.from_url(records_url)
    for n in range(20):
        project.fine.delay(n).get(timeout=30)
    # Every few seconds a worker says there how it is: of no task.
    assert [key for key in records.scan_iter() if b":{worker}:" not in key] == []
    assert os.environ["KEY_PREFIX"]
