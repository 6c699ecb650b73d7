"""Outcomes that take a second message of the same work, or a second worker: counted once, where they end."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from celery_hardened import Hardening, Query
from celery_hardened.dead_letter.redrive import redrive
from celery_hardened.pipeline.windows import windows
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.support.broker import Broker
from tests.support.counts import COUNTS, Counts
from tests.support.delivery_app import Book
from tests.support.health import Probed
from tests.support.letters import letter_of, letters, publish_raw, task_headers
from tests.support.notes import notes
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

every_pool = pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])


class Work(Counts):
    """Work whose messages the test makes itself."""

    def publish(self, broker: Broker, name: str, task_id: str, **marks: Any) -> None:
        headers = task_headers(f"proj.{name}", id=task_id, hardened={"v": 1, "published": time.time(), **marks})
        publish_raw(broker, body=json.dumps([[task_id], {}, {}]), headers=headers, correlation_id=task_id)

    def becomes(self, number: int) -> None:
        """All of *number* deliveries have ended, as the truth says."""
        self.wait(number, within=60)
        assert self.difference() == {}


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    return Probed(tmp_path / "health")


@every_pool
def test_second_messages(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path, probed: Probed
) -> None:
    """Of a slot that ran: deduplicated, once each. Of a dead letter that was redriven: likewise. A run whose schedule
    has a later one: superseded; one that still has its window is a success."""
    start_worker(COUNTS, pool=pool, concurrency=2, env=probed.env)
    work = Work(load_project(COUNTS), out, probed)

    slot, schedule = {"once": True, "slot": 1_700_000_000.5, "schedule": "nightly"}, uuid4().hex
    work.publish(broker, "ok", schedule, **slot)
    work.becomes(1)
    for number in (1, 2):
        work.publish(broker, "ok", schedule, **slot)
        work.asked["proj.ok", "deduplicated"] += 1
        work.becomes(1 + number)

    hardening = Hardening.expect(work.project.app)
    assert windows(hardening).enter("schedule:latest", task_id="later", ttl=300) == "later"
    yielding = {"yields": True, "slot": 1_700_000_000.5}
    work.publish(broker, "ok", uuid4().hex, run="schedule:latest", schedule="latest", **yielding)
    work.asked["proj.ok", "superseded"] += 1
    work.becomes(4)
    work.publish(broker, "ok", uuid4().hex, run="schedule:alone", schedule="alone", **yielding)
    work.becomes(5)

    failed = work.project.mended.delay(uuid4().hex)
    letter = letter_of(work.project, failed.id).letter.id
    report = redrive(work.project.app, hardening.dead_letters, Query(), by="ann", why="", redrive_max=3)
    assert report.sent == 1
    work.becomes(7)
    work.publish(broker, "mended", failed.id, redrive=[letter, "another token"])
    work.asked["proj.mended", "deduplicated"] += 1
    work.becomes(8)
    assert not letters(work.project)
    assert work.page().of("task_duration_seconds_count") == {
        ("proj.ok", "ok"): 2,
        ("proj.mended", "ok"): 1,
        ("proj.mended", "error"): 1,
    }


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_worker_that_stood_still(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path, tmp_path: Path
) -> None:
    """What it had not begun when its leases ran out is ``lease_lost`` there, and a success where it ran instead. Of
    what it ran, the loss of the lease is told at once."""
    env = {"LEASE": "6", "CONF": "dict(worker_prefetch_multiplier=2)"}
    mine, theirs = Probed(tmp_path / "frozen"), Probed(tmp_path / "other")
    frozen = start_worker(COUNTS, pool=pool, concurrency=1, env={**env, **mine.env})
    project = load_project(COUNTS, env=env)
    ours, their = Work(project, out, mine), Work(project, out, theirs)
    book, order = Book(broker), uuid4().hex
    project.long.delay(order)
    until(lambda: f"long {order}" in notes(out, "begun"), what="the first run to begin")
    held = project.ok.delay("held")
    until(lambda: len(book.leased()) == 2, what="one to run and one to be held")
    mine.metrics()  # where it answers is known before it is stopped
    frozen.pause()
    start_worker(COUNTS, pool=pool, concurrency=2, env={**env, **theirs.env})
    assert held.get(timeout=60) == "held"
    until(lambda: notes(out, "begun").count(f"long {order}") == 2, within=60, what="the run to start elsewhere")

    frozen.resume()
    until(lambda: ours.page().of("leases_lost_total") == {(broker.queue,): 1}, within=60, what="the loss to be told")
    (out / f"end-{order}").touch()
    until(lambda: notes(out, "truth").count("proj.long success") == 2, within=60, what="both runs to end")
    until(
        lambda: ours.page().outcomes() == {("proj.long", "success"): 1, ("proj.ok", "lease_lost"): 1},
        within=60,
        what=f"the frozen worker to count its two deliveries, not {ours.page().outcomes()}",
    )
    until(
        lambda: their.page().outcomes() == {("proj.long", "success"): 1, ("proj.ok", "success"): 1},
        within=60,
        what=f"the other worker to count its two, not {their.page().outcomes()}",
    )
    assert their.page().of("leases_lost_total") == {}


def test_an_exporter_that_is_restarted(
    start_worker: StartWorker, start_process: StartProcess, load_project: LoadProject, out: Path, tmp_path: Path
) -> None:
    """It is killed and another one takes its place while tasks run: no count of a worker differs from the truth, and
    neither exporter shows a count of tasks."""
    probed = Probed(tmp_path / "health")
    start_worker(COUNTS, concurrency=2, env=probed.env)
    work = Work(load_project(COUNTS), out, probed)
    command = ("python", "-m", "celery", "-A", "proj", "hardened", "exporter", "--every", "0.5")

    plan = {"ok": 100, "plain": 100, "flaky": 20, "broken": 20}
    total = 100 + 100 + 3 * 20 + 20
    for name, number in plan.items():
        work.send(name, number // 2)
    for turn in ("first", "second"):
        exporter = Probed(tmp_path / turn)
        process = start_process(COUNTS, *command, env=exporter.env)
        exporter.wait("readyz", good=True)
        assert "celery_hardened_tasks_total" not in exporter.metrics()
        if turn == "first":
            for name, number in plan.items():
                work.send(name, number - number // 2)
            process.signal(signal.SIGKILL)
            process.wait()
    work.wait(total, within=120)
    assert work.difference() == {}
