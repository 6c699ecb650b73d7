"""A worker that is told to stop: what it did not start runs elsewhere at once, what it runs starts once."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from celery_hardened import Hardening
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.delivery_app import DELIVERY, Book, conf, starts
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.until import until
from tests.support.worker import WorkerProcess

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
]

LEASE = 3.0
LONG = 5 * LEASE + 1
"""Seconds of the task that runs when the worker is told to stop."""

HELD = ["a", "b", "c"]
"""What it has taken beside that."""

AT_ONCE = 10.0
"""Seconds from the signal to the start of these elsewhere that a test allows; meant is less than one."""


def deaths(project: ModuleType) -> list[str]:
    """Records of deaths. A mark that says "given back on purpose" is none."""
    hardening: Any = Hardening.of(project.app)
    keys = [key.decode() for key in hardening.redis.scan_iter(match="*:death:*")]
    return [key for key in keys if ":returned:" not in key]


class Scene:
    """A worker with one slot that runs ``long`` and holds a, b, c; d is queued behind them.

    All are sent before it starts: a solo worker takes nothing while it runs something.
    """

    def __init__(
        self, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path, **options: Any
    ) -> None:
        env = conf(hardened_lease=LEASE, worker_prefetch_multiplier=4, **options.pop("settings", {}))
        self.out = out
        self.project = load_project(DELIVERY, env=env)
        self.results = {"long": self.project.job.delay("long", LONG)}
        for order in (*HELD, "d"):
            self.results[order] = self.project.job.delay(order)
        self.book = Book(broker)
        self.worker = start_worker(DELIVERY, concurrency=1, env={**env, **options.pop("env", {})}, **options)
        until(
            lambda: starts(out, "long") and len(self.book.leased()) == 4 and self.book.waiting() == 1,
            what="one to run, three to be held and one to be queued",
        )

    def second(self, start_worker: StartWorker, **options: Any) -> WorkerProcess:
        """Another worker, with one slot and no prefetch."""
        return start_worker(DELIVERY, concurrency=1, env=conf(hardened_lease=LEASE), **options)

    def all_done(self) -> None:
        """Everything succeeded, nothing is left, nobody is blamed."""
        assert [result.get(timeout=90) for result in self.results.values()] == list(self.results)
        until(self.book.empty, within=20, what="the broker to hold nothing")
        assert letters(self.project) == []
        assert deaths(self.project) == []


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_warm_shutdown(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    SIGTERM: the running task, five leases long, ends where it is and starts nowhere else; what was held
    goes back in its old order, before what was queued behind it, runs elsewhere at once and is not marked.
    """
    scene = Scene(start_worker, load_project, broker, out, pool=pool)
    # It starts beside them, and takes d.
    other = scene.second(start_worker, pool=pool)
    until(lambda: starts(out, "d"), what="the queued one to start elsewhere")
    until(lambda: len(scene.book.leased()) == 4, what="it to be acked")
    scene.worker.signal(signal.SIGTERM)
    told = time.time()

    until(lambda: len(starts(out, *HELD)) == 3, within=60, what="what was held to start")
    held = starts(out, *HELD)
    assert [start.order for start in held] == HELD
    assert {start.node for start in held} == {other.name}
    assert held[0].at - told <= AT_ONCE
    assert not any(start.marked for start in held)
    assert "long" not in notes(out, "done"), "the long task was over before it could matter"
    assert scene.worker.wait(within=60) == 0
    scene.all_done()
    assert [start.node for start in starts(out, "long")] == [scene.worker.name]


def test_warm_shutdown_of_solo(start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path) -> None:
    """
    SIGTERM to a solo worker, which cannot do anything while its task runs: after that one it stops, starts
    nothing more of what it holds, and that goes back in its old order and unmarked.
    """
    scene = Scene(start_worker, load_project, broker, out, pool="solo")
    scene.worker.signal(signal.SIGTERM)
    assert scene.worker.wait(within=60) == 0
    assert [start.order for start in starts(out)] == ["long"]
    other = scene.second(start_worker, pool="solo")
    scene.all_done()
    rest = starts(out, *HELD, "d")
    assert [start.order for start in rest] == [*HELD, "d"]
    assert {start.node for start in rest} == {other.name}
    assert not any(start.marked for start in rest)


def test_order_of_what_is_given_back(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    At SIGTERM what was held goes back at once, while the long task still runs, to the head of the queue,
    byte for byte as it was taken.
    """
    scene = Scene(start_worker, load_project, broker, out)
    taken = {entry.partition(b', "", ')[0][1:] for tag, entry in scene.book.client.hgetall("unacked").items()}
    scene.worker.signal(signal.SIGTERM)
    until(lambda: scene.book.waiting() == 4, within=AT_ONCE, what="what was held to be back in the queue")
    assert len(scene.book.leased()) == 1
    assert "long" not in notes(out, "done")
    assert set(scene.book.queued()[:3]) < taken

    scene.second(start_worker)
    scene.all_done()
    assert [start.order for start in starts(out, *HELD, "d")] == [*HELD, "d"]
    assert len(starts(out, "long")) == 1


def test_soft_shutdown(start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path) -> None:
    """
    A soft shutdown waits for the running task, five leases long, and starts it nowhere else; what was
    held runs elsewhere at once and unmarked.
    """
    scene = Scene(
        start_worker,
        load_project,
        broker,
        out,
        settings={"worker_soft_shutdown_timeout": LONG + 5},
        env={"REMAP_SIGTERM": "SIGQUIT"},
    )
    other = scene.second(start_worker)
    until(lambda: starts(out, "d"), what="the queued one to start elsewhere")
    scene.worker.signal(signal.SIGTERM)
    told = time.time()
    scene.worker.wait(within=90)
    scene.all_done()
    assert [start.node for start in starts(out, "long")] == [scene.worker.name]
    held = starts(out, *HELD)
    assert [start.order for start in held] == HELD
    assert not any(start.marked for start in held)
    assert {start.node for start in held} == {other.name}
    assert held[0].at - told <= AT_ONCE


def test_cold_shutdown(start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path) -> None:
    """
    SIGQUIT: the running task is cut short and starts again elsewhere, marked, at once; what was held runs
    elsewhere unmarked; none of them counts a death.
    """
    scene = Scene(start_worker, load_project, broker, out)
    other = scene.second(start_worker)
    until(lambda: starts(out, "d"), what="the queued one to start elsewhere")
    scene.worker.signal(signal.SIGQUIT)
    told = time.time()
    scene.worker.wait(within=60)

    until(lambda: len(starts(out, *HELD)) == 3 and len(starts(out, "long")) == 2, within=60, what="all to start")
    again = starts(out, "long")[1]
    held = starts(out, *HELD)
    assert again.node == other.name
    assert again.marked
    assert min(start.at for start in (again, *held)) - told <= AT_ONCE
    assert [start.order for start in held] == HELD
    assert not any(start.marked for start in held)
    scene.all_done()
