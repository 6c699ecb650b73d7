"""Scheduled runs on real workers: whatever their end, their schedule knows; a slot that is there twice runs once."""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from celery_hardened import Hardening, Query
from celery_hardened.beat.names import task_id_of, window_of
from celery_hardened.pipeline.publish import FireMarks, firing
from celery_hardened.pipeline.windows import ttl_of_publish, windows
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letter_of, letters
from tests.support.notes import notes
from tests.support.until import until

pytestmark = pytest.mark.integration

SCHEDULED = (Path(__file__).parents[1] / "support" / "scheduled_app.py").read_text()

SLOT = 1_700_000_000.25

#: Of tests that wait for one to end. A worker may stand still for some seconds on a busy machine.
LEASE = 4.0
SHORT = {"LEASE": str(LEASE)}

on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


def fire(project: ModuleType, name: str, *, schedule: str = "", times: int = 1, missed: int = 0, **options: Any) -> str:
    """Fire a task as beat does: the window of its schedule is taken, its message says so. The task's id."""
    schedule = schedule or name
    task, task_id = getattr(project, name), task_id_of(schedule, SLOT)
    hardening = Hardening.expect(project.app)
    ttl = ttl_of_publish(hardening, task, options)
    assert windows(hardening).enter(window_of(schedule), task_id=task_id, ttl=ttl) == task_id
    marks = FireMarks(slot=SLOT, schedule=schedule, missed=missed, run=window_of(schedule), once=times > 1)
    token = firing.set((task_id, marks))
    try:
        for _ in range(times):
            task.apply_async((f"gate-{schedule}",), task_id=task_id, **options)
    finally:
        firing.reset(token)
    return task_id


def held(project: ModuleType) -> dict[str, str]:
    """Task id by schedule."""
    found = windows(Hardening.expect(project.app)).held("schedule")
    return {one.key.removeprefix("schedule:"): one.task_id for one in found}


def left(project: ModuleType, schedule: str) -> float:
    found = windows(Hardening.expect(project.app)).held("schedule")
    return next((one.left for one in found if one.key == window_of(schedule)), 0.0)


def starts(out: Path, task_id: str) -> int:
    return sum(1 for line in notes(out, "starts") if line.split()[0] == task_id)


def begun(out: Path, task_id: str, *, times: int = 1) -> None:
    until(lambda: starts(out, task_id) >= times, within=60, what=f"start {times} of {task_id}")


def opened(out: Path, schedule: str) -> None:
    (out / f"gate-{schedule}").touch()


# --- overlap ------------------------------------------------------------------------------------------

ENDS = (
    "work", "keyed", "early", "flaky", "early_flaky", "broken", "ignoring", "rejecting", "replaced", "poison",
    "early_lost", "hard_limit", "contained", "contained_broken", "contained_flaky", "contained_replaced",
    "contained_lost", "contained_late",
)  # fmt: skip


def test_every_end_of_a_run_is_known_to_its_schedule(
    start_worker: StartWorker, load_project: LoadProject, out: Path, subtests: pytest.Subtests
) -> None:
    """While it runs its window is held; after success, retries, a letter, ``Ignore``, a replacement or a killed
    process it is free. For hardened tasks, contained ones, and those that ack early."""
    project = load_project(SCHEDULED)
    waiting = fire(project, "contained", schedule="waits")
    start_worker(SCHEDULED, concurrency=2)
    begun(out, waiting)
    again = {"flaky": 3, "early_flaky": 2, "contained_flaky": 2}
    for name in ENDS:
        with subtests.test(name):
            task_id = fire(project, name)
            begun(out, task_id)
            assert held(project)[name] == task_id, "it runs"
            opened(out, name)
            begun(out, task_id, times=again.get(name, 1))
            until(lambda name=name: name not in held(project), within=60, what=f"{name} is over")
    assert held(project) == {"waits": waiting}


def test_a_run_that_never_begins_is_over_too(
    start_worker: StartWorker, load_project: LoadProject, out: Path, subtests: pytest.Subtests
) -> None:
    """Expired, revoked, terminated, unknown to its worker."""
    project = load_project(SCHEDULED)
    expired = fire(project, "work", schedule="expired", expires=0.1)
    unknown = fire(project, "new_here")
    contained = fire(project, "contained", schedule="contained-expired", expires=0.1)
    assert left(project, "expired") <= 10.2, "its broker may drop it, and tell nobody"
    until(lambda: left(project, "expired") < 9.5, what="their expiry")
    start_worker(SCHEDULED, concurrency=1, env={"WITHOUT_NEW": "1"})
    assert letter_of(project, unknown).letter.reason == "unknown_task"
    for schedule in ("expired", "contained-expired", "new_here"):
        with subtests.test(schedule):
            until(lambda schedule=schedule: schedule not in held(project), within=60, what=f"{schedule} is over")
    assert starts(out, expired) + starts(out, contained) == 0

    running = fire(project, "contained", schedule="terminated")
    begun(out, running)
    revoked = fire(project, "work", schedule="revoked")
    until(lambda: revoked in reserved(project), within=60, what="it to wait in the worker")
    project.app.control.revoke(revoked, reply=True, timeout=30, limit=1)
    assert held(project) == {"terminated": running, "revoked": revoked}
    project.app.control.revoke(running, terminate=True, signal="SIGKILL")
    until(lambda: held(project) == {}, within=60, what="both are over")
    assert starts(out, revoked) == 0


def test_a_run_knows_what_it_was_fired_for(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Its slot, its schedule and what was missed, on each of its retries."""
    project = load_project(SCHEDULED)
    task_id = fire(project, "flaky", missed=2)
    opened(out, "flaky")
    start_worker(SCHEDULED)
    begun(out, task_id, times=3)
    assert set(notes(out, "starts")) == {f"{task_id} {SLOT} flaky 2"}


@pytest.mark.chaos
def test_a_killed_worker_ends_what_it_had_acked(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    Acked early, hardened or contained, a run is gone with its worker: its schedule is free within a lease. Acked
    late it comes back, holds its schedule meanwhile, and frees it at its end.
    """
    project = load_project(SCHEDULED, env=SHORT)
    worker = start_worker(SCHEDULED, concurrency=3, env=SHORT)
    late, gone = fire(project, "work"), {name: fire(project, name) for name in ("early", "contained")}
    for task_id in (late, *gone.values()):
        begun(out, task_id)
    until(lambda: all(0 < left(project, name) <= LEASE for name in gone), what="they live on a lease")
    worker.kill_group()
    until(lambda: held(project) == {"work": late}, within=LEASE * 5, what="what was acked is over")

    start_worker(SCHEDULED, env=SHORT)
    begun(out, late, times=2)
    assert held(project) == {"work": late}
    opened(out, "work")
    until(lambda: held(project) == {}, within=60, what="the redelivered run is over")


def reserved(project: ModuleType) -> set[str]:
    """Ids of what its worker has taken, and not begun."""
    replies = project.app.control.inspect(timeout=5.0, limit=1).reserved() or {}
    return {one["id"] for waiting in replies.values() for one in waiting}


def acked(project: ModuleType, task_id: str) -> bool:
    """Does its worker say so?"""
    replies = project.app.control.inspect(timeout=5.0, limit=1).active() or {}
    return any(one["id"] == task_id and one["acknowledged"] for active in replies.values() for one in active)


@on_redis
@pytest.mark.chaos
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_worker_that_is_killed_between_the_early_ack_and_the_start_holds_no_schedule(
    start_worker: StartWorker, load_project: LoadProject, out: Path, pool: str
) -> None:
    """Nothing of it has begun, and no broker knows of it: its schedule is free within a lease. As long as the worker
    lives, it is held for longer than one."""
    project = load_project(SCHEDULED, env=SHORT)
    worker = start_worker(SCHEDULED, pool=pool, env={**SHORT, "GAP": "1"})
    task_id = fire(project, "contained")
    until(lambda: notes(out, "gaps") == [task_id], within=60, what="it is accepted")
    until(lambda: acked(project, task_id), within=60, what="it is acked")
    end = time.monotonic() + LEASE * 1.5
    while time.monotonic() < end:
        assert held(project) == {"contained": task_id}
        time.sleep(0.05)
    worker.kill_group()
    until(lambda: held(project) == {}, within=LEASE * 5, what="what was acked is over")
    assert starts(out, task_id) == 0


@on_redis
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_retry_that_waits_longer_than_a_lease_is_not_shortened_by_an_early_ack(
    start_worker: StartWorker, load_project: LoadProject, out: Path, pool: str
) -> None:
    """The process may be done, and its retry published, before its parent hears that it was accepted."""
    project = load_project(SCHEDULED, env=SHORT)
    start_worker(SCHEDULED, pool=pool, concurrency=2, env=SHORT)
    tasks = {f"waits-{n}": fire(project, "contained_waiting", schedule=f"waits-{n}") for n in range(10)}
    for name, task_id in tasks.items():
        opened(out, name)
        begun(out, task_id)
    retried = project.app.AsyncResult
    until(lambda: all(retried(one).state == "RETRY" for one in tasks.values()), within=60, what="all to wait")
    until(lambda: all(left(project, name) > 3600 for name in tasks), what="all schedules to be held for the wait")
    last = fire(project, "contained", schedule="last")
    opened(out, "last")
    begun(out, last)
    assert all(left(project, name) > 3600 for name in tasks)


def test_a_redriven_run_takes_its_schedule_again(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """Its letter had given it back; nobody has it, so it is held until the run ends, and free after it."""
    project = load_project(SCHEDULED)
    start_worker(SCHEDULED)
    task_id = fire(project, "broken")
    opened(out, "broken")
    letter = letter_of(project, task_id)
    until(lambda: held(project) == {}, what="the letter has given it back")
    (out / "gate-broken").unlink()
    Hardening.expect(project.app).redrive(Query(ids=(letter.letter.id,)), by="test", why="fixed")
    begun(out, task_id, times=2)
    until(lambda: held(project) == {"broken": task_id}, what="it has its schedule again")
    opened(out, "broken")
    until(lambda: held(project) == {}, within=60, what="it is over")


# --- a slot that is there twice -----------------------------------------------------------------------


def succeeded(project: ModuleType, task_id: str) -> None:
    result = project.app.AsyncResult(task_id)
    until(lambda: result.state == "SUCCESS", within=90, what=f"the success of {task_id}")


def test_two_messages_of_a_slot_one_after_the_other(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """Published twice under one id: the effect comes once, and nothing is a dead letter."""
    project = load_project(SCHEDULED)
    task_id = fire(project, "work", times=2)
    opened(out, "work")
    start_worker(SCHEDULED, concurrency=1)
    succeeded(project, task_id)
    last = fire(project, "work", schedule="last")
    opened(out, "last")
    succeeded(project, last)  # one after the other: then the twin has had its turn
    assert notes(out, "effects") == [task_id, last]
    assert letters(project) == []
    until(lambda: held(project) == {}, what="both schedules are free")


def test_two_messages_of_a_slot_at_the_same_time(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """On two workers the second waits for the first, takes no place meanwhile and frees nothing; then it is dropped."""
    project = load_project(SCHEDULED, env=SHORT)
    workers = [start_worker(SCHEDULED, concurrency=1, env=SHORT) for _ in range(2)]
    task_id = fire(project, "work", times=2)
    begun(out, task_id)
    other = fire(project, "work", schedule="other")
    opened(out, "other")
    succeeded(project, other)
    until(lambda: any("comes back" in worker.log() for worker in workers), within=60, what="the twin to wait")
    assert held(project) == {"work": task_id}
    opened(out, "work")
    succeeded(project, task_id)
    until(lambda: any("was run before" in worker.log() for worker in workers), within=90, what="the twin to be dropped")
    assert notes(out, "effects") == [other, task_id]
    assert starts(out, task_id) == 1
    assert letters(project) == []


def test_the_process_of_the_first_message_dies(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Its key is freed at once, and one of the two messages succeeds."""
    project = load_project(SCHEDULED, env={"LEASE": "600"})
    opened(out, "dies_once")
    task_id = fire(project, "dies_once", times=2)
    start_worker(SCHEDULED, concurrency=1, env={"LEASE": "600"})
    succeeded(project, task_id)
    assert notes(out, "effects") == [task_id]


@pytest.mark.chaos
def test_the_worker_of_the_first_message_is_killed(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """In the body, with the second message waiting: after the lease one of the two succeeds, and one alone."""
    project = load_project(SCHEDULED, env=SHORT)
    first = start_worker(SCHEDULED, concurrency=1, env=SHORT)
    task_id = fire(project, "work", times=2)
    begun(out, task_id)
    second = start_worker(SCHEDULED, concurrency=1, env=SHORT)
    first.kill_group()
    opened(out, "work")
    succeeded(project, task_id)

    def is_answered() -> bool:
        # By which of the two comes last: the dead worker's own, delivered again, is told the result.
        return "was run before" in second.log() or "was done before" in second.log()

    until(is_answered, within=120, what="the other message to be dropped or answered")
    assert notes(out, "effects") == [task_id]
    assert starts(out, task_id) == 2
    until(lambda: held(project) == {}, what="its schedule is free")
