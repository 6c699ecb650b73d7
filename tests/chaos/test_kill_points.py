"""``@idempotent`` under SIGKILL at every point of a run, and under SIGSTOP beyond its lease."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from redis import Redis

from celery_hardened import Hardening
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.frozen import is_frozen
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.until import until

pytestmark = pytest.mark.chaos

APP = (Path(__file__).parents[1] / "support" / "kill_points_app.py").read_text()

POINTS = [f"{when} {what}" for what in ("claim", "effect", "finish", "ack") for when in ("before", "after")]

#: Seconds, as the app module has it.
LEASE = 5.0

#: The documented gap of a store that is not in the effect's own transaction.
GAP = {"after effect", "before finish"}

IN_THE_CHILD = [point for point in POINTS if not point.endswith("ack")]


def effects(out: Path) -> Counter[str]:
    """How often each order had its effect."""
    return Counter(notes(out, "effects"))


def expected(point: str) -> int:
    return 2 if point in GAP else 1


def killed(out: Path, point: str) -> bool:
    return (out / f"killed {point}").exists()


def records(project: ModuleType) -> dict[str, dict[str, str]]:
    """What the store of claims knows, by the id of the task that claimed last."""
    hardening = Hardening.of(project.app)
    assert hardening is not None
    client: Redis = hardening.redis
    hashes = [client.hgetall(key) for key in client.scan_iter(f"{hardening.prefix}:claim:*")]
    return {
        known[b"task"].decode(): {name.decode(): value.decode() for name, value in known.items()} for known in hashes
    }


def assert_done(project: ModuleType, out: Path, *points: str) -> None:
    """Each has had its effect, and a second call gets the first one's result at once: no key is held by the dead."""
    assert [point for point in points if not killed(out, point)] == []
    assert [known["state"] for known in records(project).values()] == ["done"] * len(points)
    before = effects(out)
    assert before == {point: expected(point) for point in points}
    twins = [project.charge.delay(point) for point in points]
    assert [twin.get(timeout=60) for twin in twins] == [f"charged {point}" for point in points]
    assert effects(out) == before
    assert letters(project) == []


def test_a_killed_child_repeats_nothing_that_is_marked(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    SIGKILL of the pool process before and after the claim, the effect, the finish and the ack:
    each order has its effect once, twice where it died between effect and finish, and completes.
    """
    project = load_project(APP)
    start_worker(APP, concurrency=len(IN_THE_CHILD), env={"VICTIM": "child"})
    results = {point: project.charge.delay(point) for point in IN_THE_CHILD}
    for point, result in results.items():
        assert result.get(timeout=90) == f"charged {point}"
    # One after the other: the parent kills a child that is idle by then, and may have been given the next.
    for point in ("before ack", "after ack"):
        assert project.charge.delay(point).get(timeout=90) == f"charged {point}"
        until(lambda point=point: killed(out, point), within=30, what=f"a child to be killed {point}")
    assert_done(project, out, *POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_worker_repeats_nothing_that_is_marked(
    start_worker: StartWorker, load_project: LoadProject, out: Path, point: str
) -> None:
    """
    The same with SIGKILL of the whole worker: the next worker completes the order, and waits for the dead
    one's lease at most.
    """
    project = load_project(APP)
    result = project.charge.delay(point)
    victim = start_worker(APP, concurrency=1, env={"VICTIM": "worker"}, wait=False)
    until(lambda: not victim.running, within=60, what=f"the worker to be killed {point}")
    start_worker(APP, concurrency=1, env={"VICTIM": "worker"}, wait=False)
    assert result.get(timeout=90) == f"charged {point}"
    assert_done(project, out, point)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_long_run_keeps_its_key(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """For many leases; a duplicate comes back again and again, and then gets its result."""
    project = load_project(APP)
    start_worker(APP, concurrency=2)
    first = project.settle.delay("o1", True)
    until(lambda: notes(out, "starts"), within=60, what="the first run to start")
    second = project.settle.delay("o1", True)

    def held() -> float:
        known = records(project)[first.id]
        return (int(known["lease_end"]) - int(known["fence"])) / 1000  # the fence is the time of the claim

    until(lambda: held() > 4 * LEASE, within=120, what="the claim to be renewed for three leases")
    (out / "go").touch()
    assert first.get(timeout=60) == second.get(timeout=60)
    assert len(notes(out, "starts")) == len(notes(out, "effects")) == 1


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
def test_a_frozen_holder_is_refused_when_it_wakes(
    start_worker: StartWorker, load_project: LoadProject, out: Path, checked: bool
) -> None:
    """
    SIGSTOP of the pool process beyond its lease: a second run of the key goes, under a larger fence.
    What wakes is told so by check() before its effect; without a check it cannot mark the work done.
    """
    project = load_project(APP)
    worker = start_worker(APP, concurrency=2)
    first = project.settle.delay("o1", checked)
    until(lambda: notes(out, "starts"), within=60, what="the first run to start")
    _, frozen, fence = notes(out, "starts")[0].split()

    os.kill(int(frozen), signal.SIGSTOP)
    until(lambda: is_frozen(int(frozen)), within=30, what="the first run to stand still")
    (out / "go").touch()
    second = project.settle.delay("o1", checked)
    pid = second.get(timeout=60)
    assert str(pid) != frozen
    assert notes(out, "effects") == [f"o1 {pid}"]
    (fence_of_second,) = (int(line.split()[2]) for line in notes(out, "starts") if line.split()[1] == str(pid))
    assert fence_of_second > int(fence)

    os.kill(int(frozen), signal.SIGCONT)
    until(lambda: frozen in notes(out, "awake"), within=60, what="the frozen run to go on")
    if checked:
        assert first.get(timeout=60) == pid  # it came back, and found what the other one had done
        assert [line.split()[0] for line in notes(out, "refused")] == [frozen]
    else:
        assert first.get(timeout=60) == int(frozen)
        worker.wait_for_log("its key is another run's by now")
    known = records(project)[second.id]
    assert (known["state"], known["fence"]) == ("done", str(fence_of_second))
    assert project.settle.delay("o1", checked).get(timeout=60) == pid
    assert len(notes(out, "effects")) == (1 if checked else 2)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_frozen_worker_is_refused_when_it_wakes(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    SIGSTOP of the whole worker: its very message is delivered again and runs elsewhere, once. RabbitMQ gives
    a message of a silent worker to another one only when the connection has died.
    """
    project = load_project(APP)
    worker = start_worker(APP, concurrency=1)
    result = project.settle.delay("o1", True)
    until(lambda: notes(out, "starts"), within=60, what="the first run to start")
    _, frozen, fence = notes(out, "starts")[0].split()

    worker.pause()
    (out / "go").touch()
    start_worker(APP, concurrency=1)
    pid = result.get(timeout=60)
    assert str(pid) != frozen
    assert int(notes(out, "starts")[1].split()[2]) > int(fence)

    worker.resume()
    until(lambda: notes(out, "refused"), within=60, what="the frozen run to be refused")
    assert notes(out, "refused")[0].split()[0] == frozen
    assert project.settle.delay("o1", True).get(timeout=60) == pid
    assert notes(out, "effects") == [f"o1 {pid}"]
