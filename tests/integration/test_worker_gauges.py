"""What a real worker says of this moment: what runs, what waits in it, what it consumes."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

import pytest
from celery import __version__ as celery_version

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.client import listening
from tests.support.counts import COUNTS, Page
from tests.support.health import Probed
from tests.support.notes import notes
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = pytest.mark.integration

every_pool = pytest.mark.parametrize(
    ("broker", "pool"),
    [*(("redis", pool) for pool in POOLS), ("rabbitmq", "prefork"), ("rabbitmq", "threads")],
    indirect=["broker"],
)


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    return Probed(tmp_path / "health")


@every_pool
def test_what_runs_and_what_waits(
    pool: str, start_worker: StartWorker, load_project: LoadProject, probed: Probed, broker: Broker, out: Path
) -> None:
    """Zeros at rest; then each number is what the bodies say, what is over the pool's size waits, also what is not due;
    the longest run grows with the clock; all is 0 when all has ended."""
    places = 1 if pool == "solo" else 2
    env = {**probed.env, "CONF": "dict(worker_prefetch_multiplier=2)"}
    start_worker(COUNTS, pool=pool, concurrency=places, env=env)
    project = load_project(COUNTS)

    def value(name: str, *labels: str) -> float | None:
        return Page.parse(probed.metrics()).series.get(name, {}).get(labels)

    def held() -> tuple[float | None, ...]:
        return tuple(value(f"worker_{name}", broker.queue) for name in ("active", "reserved", "waiting"))

    until(lambda: value("worker_consuming", broker.queue) == 1, what="the worker to say that it consumes")
    assert held() == (0, 0, 0)
    assert value("task_longest_running_seconds", "proj.busy") is None
    assert value("worker_concurrency") == places
    page = Page.parse(probed.metrics())
    ((_, celery, said),) = page.series["worker_info"]
    assert (celery, said) == (celery_version, {"threads": "thread"}.get(pool, pool))  # as the banner has it

    distant = 0 if broker.kind == "redis" else 1  # in Redis it waits there, and costs no worker anything
    project.ok.apply_async(("later",), countdown=3600)
    until(lambda: held() == (0, 0, distant), what="the message that is not due to wait")
    orders = [uuid4().hex for _ in range(places + 1)]
    began = time.time()
    for order in orders:
        project.busy.delay(order)
    until(lambda: len(notes(out, "begun")) == places, what="the pool to be full")
    until(lambda: held()[0] == places, what="what runs to be told")
    begun = time.time()
    if pool != "solo":
        until(lambda: held() == (places, 1, distant), what="one message to wait for a place")
        tick = value("worker_loop_last_tick_timestamp_seconds")
        assert tick is not None
        until(
            lambda: (value("worker_loop_last_tick_timestamp_seconds") or 0) > max(tick, began), what="the loop to turn"
        )
    least = time.time() - begun
    longest = value("task_longest_running_seconds", "proj.busy")
    assert longest is not None
    assert least - 0.5 <= longest <= time.time() - began + 0.5
    until(lambda: (value("task_longest_running_seconds", "proj.busy") or 0) > longest, what="the longest run to grow")

    for order in orders:
        Path(out, f"end-{order}").touch()
    until(lambda: held() == (0, 0, distant), within=60, what="all to have ended")
    assert value("task_longest_running_seconds", "proj.busy") in (None, 0)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_what_is_consumed(start_worker: StartWorker, load_project: LoadProject, probed: Probed, broker: Broker) -> None:
    """A queue that the worker was told to leave is 0, and one that it was told to take is 1."""
    start_worker(COUNTS, env=probed.env)
    app = load_project(COUNTS).app
    control = app.control

    def consuming() -> dict[tuple[str, ...], float]:
        return Page.parse(probed.metrics()).series.get("worker_consuming", {})

    until(lambda: consuming() == {(broker.queue,): 1}, what="the worker to consume")
    listening(app)
    control.add_consumer("beside")
    until(lambda: consuming() == {(broker.queue,): 1, ("beside",): 1}, what="a second queue")
    control.cancel_consumer(broker.queue)
    until(lambda: consuming().get((broker.queue,), 0) == 0, what="the first to be left")
    assert consuming()["beside",] == 1


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_zeros_before_anything_ran(start_worker: StartWorker, probed: Probed, broker: Broker) -> None:
    """Four lines of each task of the project, with the queue that it goes to; none of Celery's own tasks."""
    source = COUNTS + "\n\n@app.task(queue='aside')\ndef elsewhere(): pass\n"
    worker = start_worker(source, env={**probed.env, "CONF": "dict(task_routes={'proj.ok': 'routed'})"})
    page = Page.parse(probed.metrics())
    tasks = {line.split()[-1] for line in worker.log().splitlines() if line.startswith("  . proj.")}
    assert len(tasks) > 15
    queues = dict.fromkeys(tasks, broker.queue) | {"proj.elsewhere": "aside", "proj.ok": "routed"}
    outcomes = ("failure", "retry", "success")
    assert page.series["tasks_total"] == {
        (task, queue, outcome): 0 for task, queue in queues.items() for outcome in outcomes
    }
    assert page.series["dead_letters_written_total"] == {
        (task, queue, "permanent"): 0 for task, queue in queues.items()
    }
