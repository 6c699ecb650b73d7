"""A loop that a task holds up, the places that refused starts free, and arguments that no pipe takes."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.delivery_app import DELIVERY, Book, conf, starts
from tests.support.letters import letters, publish_raw, task_headers
from tests.support.until import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
]

LEASE = 3.0


@pytest.mark.slow
def test_solo_task_beyond_its_time_limit_starts_once(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    The solo pool enforces no time limit. A task that holds up its loop for four leases, most of them
    beyond its time limit, starts once although another worker would take it, and is acked.
    """
    lease = 4.0
    env = conf(hardened_lease=lease)
    for _ in range(2):
        start_worker(DELIVERY, pool="solo", env=env)
    project = load_project(DELIVERY, env=env)
    result = project.job.apply_async(("long", 4 * lease), time_limit=1.0)
    assert result.get(timeout=90) == "long"
    until(Book(broker).empty, within=20, what="it to be acked")
    assert [(start.order, start.marked) for start in starts(out)] == [("long", False)]
    assert letters(project) == []


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("task", ["early", "job"], ids=["early ack", "late ack"])
def test_refused_starts_free_their_places(
    task: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    A worker that has taken four messages is frozen past its lease; another one drains them and stops.
    Going on, the first one starts none of those it still has in mind, and alone runs ten new ones:
    each refused start has freed its place among the four, and the slot of the pool.
    """
    env = conf(hardened_lease=LEASE, worker_prefetch_multiplier=4)
    frozen = start_worker(DELIVERY, concurrency=1, env=env)
    project = load_project(DELIVERY, env=env)
    book = Book(broker)
    job = getattr(project, task)
    # Acked early, the running one takes none of the four places.
    held = [f"held-{n}" for n in range(4 if task == "early" else 3)]
    job.delay("runs", 12.0)
    until(lambda: starts(out, "runs"), what="one to run")
    taken = [job.delay(order) for order in held]
    until(lambda: len(book.leased()) == 4, what="four to be leased")
    frozen.pause()
    assert not starts(out, *held), "it ran on: this machine is too slow"

    other = start_worker(DELIVERY, concurrency=1, env=env)
    assert [result.get(timeout=60) for result in taken] == held
    until(book.empty, within=60, what="the other one to end what it took")
    other.stop()

    frozen.resume()
    new = [f"new-{n}" for n in range(10)]
    sent = [job.delay(order) for order in new]
    assert [result.get(timeout=60) for result in sent] == new
    assert {start.node for start in starts(out, *new)} == {frozen.name}
    assert sorted(start.order for start in starts(out, *held, *new)) == sorted([*held, *new])
    assert frozen.log().count("is not started: it is not this worker's any more") == len(held)
    until(book.empty, within=20, what="all to be acked")
    assert letters(project) == []


#: Read as JSON, and too deep for pickle.
DEEP = 900


def deep_message(protocol: int, task_id: str) -> dict[str, object]:
    """A ``job`` with arguments nested so deeply. Those of protocol 2 go to the pool as the text they came in."""
    args = "[" * DEEP + "1" + "]" * DEEP
    if protocol == 1:
        return {"body": f'{{"task": "proj.job", "id": "{task_id}", "args": [{args}], "kwargs": {{}}}}', "headers": {}}
    return {"body": f"[[{args}], {{}}, {{}}]", "headers": task_headers("proj.job", id=task_id)}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("protocol", [1, 2])
def test_deep_arguments_leave_the_slot(
    protocol: int, pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    Arguments that cannot be pickled, three times, and a good task behind them: it runs in the one slot
    of the worker, which stays, and the deep ones have one end each.
    """
    worker = start_worker(DELIVERY, pool=pool, concurrency=1)
    project = load_project(DELIVERY)
    ids = [str(uuid.uuid4()) for _ in range(3)]
    for task_id in ids:
        publish_raw(broker, **deep_message(protocol, task_id))  # type: ignore[arg-type]
    assert project.job.delay("after").get(timeout=60) == "after"
    assert worker.running

    def ends() -> int:
        deep = [start for start in starts(out) if start.order != "after"]
        return len(letters(project)) + len(deep)

    until(lambda: ends() >= len(ids), within=30, what="the ends of all deep ones")
    until(Book(broker).empty, within=20, what="the broker to hold nothing")
    assert ends() == len(ids)
