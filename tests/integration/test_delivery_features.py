"""What Celery does beside running tasks does what it did: control, events, results, queues, priorities, pools."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.support.broker import Broker
from tests.support.client import listening
from tests.support.delivery_app import DELIVERY, Book, conf, starts
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
]

LEASE = 3.0


def queues_of(app: Celery) -> set[str]:
    """The queues that the one worker serves, as it says itself."""
    answer = app.control.inspect(timeout=30, limit=1).active_queues()
    return {queue["name"] for queue in answer["w1@test"]}


def options(**transport: Any) -> dict[str, str]:
    """Environment of an app with these transport options."""
    return conf(hardened_lease=LEASE, broker_transport_options=transport)


@pytest.mark.parametrize("pool", POOLS)
def test_remote_control_and_events(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """Ping, stats, the list of queues and a revoke are answered in every pool; events come, and none is leased."""
    start_worker(DELIVERY, pool=pool, concurrency=2, args=["-E"])
    project = load_project(DELIVERY)
    app = project.app
    listening(app)
    inspect = app.control.inspect(timeout=30, limit=1)
    assert inspect.ping() == {"w1@test": {"ok": "pong"}}
    assert inspect.stats()["w1@test"]["broker"]["transport"] == "redis"
    assert queues_of(app) == {broker.queue}

    seen: list[dict[str, Any]] = []
    done = threading.Event()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})

        def listen() -> None:
            for _ in receiver.itercapture(limit=None, timeout=None, wakeup=True):
                if done.is_set():
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        until(lambda: any(event["type"] == "worker-heartbeat" for event in seen), within=30, what="a heartbeat")
        revoked = app.signature("proj.job", ("revoked",), countdown=3)
        revoked.freeze("revoked-id")
        app.control.revoke("revoked-id", reply=True, timeout=30, limit=1)  # before it is due
        sent = revoked.apply_async(task_id="revoked-id")
        task = project.job.delay("runs")
        assert task.get(timeout=30) == "runs"
        until(lambda: sent.state == "REVOKED", what="the revoked task to be recorded")

        def types(uuid: str) -> list[str]:
            return [event["type"] for event in seen if event.get("uuid") == uuid]

        expected = ["task-received", "task-started", "task-succeeded"]
        until(lambda: types(task.id) == expected, within=30, what=f"events {expected}")
        until(lambda: types("revoked-id")[-1:] == ["task-revoked"], within=30, what="its event")
        done.set()
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert [start.order for start in starts(out)] == ["runs"]
    until(Book(broker).empty, within=20, what="nothing to be held")


def test_results_by_reply_queue(start_worker: StartWorker, start_process: StartProcess, broker: Broker) -> None:
    """``rpc://``: results come through a reply queue, which is never leased."""
    env = {"RESULT_URL": "rpc://"}
    start_worker(DELIVERY, env=env)
    client = start_process(
        DELIVERY,
        "python",
        "-c",
        "import proj\n"
        "sent = [proj.job.delay(n) for n in range(20)]\n"
        "assert [one.get(timeout=30) for one in sent] == list(range(20))\n",
        env=env,
    )
    assert client.wait(within=60) == 0
    until(Book(broker).empty, within=20, what="nothing to be held")


def test_get_and_purge(load_project: LoadProject, broker: Broker) -> None:
    """``basic_get`` gives one message at a time, acked, rejected or not to be acked; ``purge`` counts what it drops."""
    project = load_project(DELIVERY)
    for n in range(6):
        project.job.delay(f"n-{n}")
    book = Book(broker)
    with project.app.connection_for_read() as connection, connection.channel() as channel:
        first = channel.basic_get(broker.queue)
        assert (book.waiting(), len(book.leased())) == (5, 1)
        first.ack()
        assert (book.waiting(), len(book.leased())) == (5, 0)
        second = channel.basic_get(broker.queue)
        second.requeue()
        assert (book.waiting(), len(book.leased())) == (6 - 1, 0)
        assert channel.basic_get(broker.queue, no_ack=True) is not None
        assert (book.waiting(), len(book.leased())) == (4, 0)
    with project.app.connection_for_read() as connection:
        simple = connection.SimpleQueue(broker.queue)
        message = simple.get(timeout=10)
        message.ack()
        assert message.payload[0][0].startswith("n-")
        simple.close()
    until(lambda: book.waiting() == 3 and not book.leased(), within=10, what="what it prefetched to be back")
    assert project.app.control.purge() == 3
    assert book.empty()


@pytest.mark.parametrize("count", [3, 10])
def test_many_queues(
    count: int, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    A worker of three queues, and of ten, more than it waits on at once, takes from all of them: what
    waited before its start in turn, and what comes to any one of them while it is idle soon.
    """
    queues = [f"{broker.queue}-{n}" for n in range(count)]
    project = load_project(DELIVERY)
    for queue in queues:
        for n in range(4):
            project.job.apply_async((f"{queue}.{n}",), queue=queue)
    start_worker(DELIVERY, concurrency=1, queues=queues)
    until(lambda: len(notes(out, "done")) == 4 * count, within=60, what="all that waited")
    first = [start.order.split(".")[0] for start in starts(out)][:count]
    assert len(set(first)) == count, "one queue was served before others had their turn"
    late = []
    for queue in queues:
        sent = time.time()
        project.job.apply_async((f"{queue}.late",), queue=queue).get(timeout=30)
        late.append(starts(out, f"{queue}.late")[0].at - sent)
    assert sorted(late)[-2] <= 3, f"late by {late} s, which is more than one stop of the machine"
    assert len(starts(out)) == 5 * count
    book = Book(broker)
    until(lambda: book.empty() and not any(map(book.waiting, queues)), within=20, what="nothing to be held")


@pytest.mark.parametrize("steps", [[0, 3, 6, 9], list(range(10))], ids=["four steps", "ten steps"])
def test_priorities(
    steps: list[int], start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    Priorities 0 to 9, sent in no order: taken by kombu's rule (0 first), in the order they were sent
    within a step. What an idle worker is sent it takes whatever the priority.
    """
    env = options(priority_steps=steps, queue_order_strategy="priority")
    project = load_project(DELIVERY, env=env)
    order = [7, 2, 9, 0, 5, 3, 8, 1, 6, 4]
    for priority in order * 2:
        project.job.apply_async((str(priority),), priority=priority)
    start_worker(DELIVERY, concurrency=1, env=env)
    until(lambda: len(starts(out)) == 20, within=60, what="all to run")

    def step(priority: int) -> int:
        return max(one for one in steps if one <= priority)

    assert [int(start.order) for start in starts(out)] == sorted(order * 2, key=step)
    for priority in (9, 5, 0):
        result = project.job.apply_async((f"late-{priority}",), priority=priority)
        assert result.get(timeout=15) == f"late-{priority}"
    until(Book(broker).empty, within=20, what="nothing to be held")


@pytest.mark.chaos
@pytest.mark.slow
def test_key_prefix(start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path) -> None:
    """
    Under a ``global_keyprefix`` every key of the broker's database has it, and fetch, delay, recovery of
    a killed worker and garbage work the same.
    """
    env = options(global_keyprefix="pre-")
    project = load_project(DELIVERY, env=env)
    book = Book(broker, "pre-")
    victim = start_worker(DELIVERY, concurrency=1, env=env)
    project.job.delay("killed", 30.0)
    until(lambda: starts(out, "killed"), what="the task to start")
    project.job.apply_async(("delayed",), countdown=6)
    book.client.lpush(f"pre-{broker.queue}", b"garbage")
    victim.kill_group()

    start_worker(DELIVERY, concurrency=3, env=env)
    until(lambda: len(starts(out, "killed")) == 2, within=60, what="the killed worker's task to start again")
    assert starts(out, "killed")[1].marked
    until(lambda: len(letters(project)) == 1, within=60, what="the letter of the garbage")
    until(lambda: starts(out, "delayed"), within=60, what="the delayed task to start")
    odd = [key for key in book.client.scan_iter() if not key.startswith(b"pre-")]
    assert odd == []


def test_autoscale(start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path) -> None:
    """``--autoscale 4,1``: with many tasks waiting the pool grows, and more run at a time than it began with."""
    worker = start_worker(DELIVERY, args=["--autoscale", "4,1"])
    project = load_project(DELIVERY)
    sent = [project.job.delay(f"n-{n}", 1.5) for n in range(8)]
    until(lambda: len(worker.children()) >= 3, within=60, what="the pool to grow")
    assert [result.get(timeout=60) for result in sent] == [f"n-{n}" for n in range(8)]
    assert len(starts(out)) == 8
    until(Book(broker).empty, within=20, what="all to be acked")


def test_prefetch_disabled(start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path) -> None:
    """``worker_disable_prefetch``: a worker takes a message when a slot is free, whatever the multiplier says."""
    env = conf(worker_disable_prefetch=True, worker_prefetch_multiplier=4)
    start_worker(DELIVERY, concurrency=2, env=env)
    project = load_project(DELIVERY, env=env)
    sent = [project.job.delay(f"n-{n}", 5.0) for n in range(6)]
    book = Book(broker)
    until(lambda: len(starts(out)) == 2, what="both slots to be taken")
    assert len(book.leased()) <= 2 + 1  # it looks at its slots just before one is taken
    assert book.waiting() >= 3
    assert [result.get(timeout=60) for result in sent] == [f"n-{n}" for n in range(6)]
    assert len(starts(out)) == 6
    until(book.empty, within=20, what="all to be acked")


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_queue_added_and_cancelled(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    A queue added at run time is served, a cancelled one is left alone with what is in it, and served
    again when it is added again; the first queue is served all the while.
    """
    worker = start_worker(DELIVERY, pool=pool, concurrency=2)
    project = load_project(DELIVERY)
    control = project.app.control
    extra = f"{broker.queue}-extra"
    book = Book(broker)

    def run(order: str, queue: str) -> None:
        assert project.job.apply_async((order,), queue=queue).get(timeout=30) == order

    listening(project.app)
    assert "ok" in control.add_consumer(extra, reply=True, timeout=30, limit=1)[0]["w1@test"]
    run("extra", extra)
    run("first", broker.queue)
    assert "ok" in control.cancel_consumer(extra, reply=True, timeout=30, limit=1)[0]["w1@test"]
    until(lambda: queues_of(project.app) == {broker.queue}, within=30, what="the queue to be left")
    left = project.job.apply_async(("left",), queue=extra)
    for n in range(3):
        run(f"first-{n}", broker.queue)
    until(lambda: book.waiting(extra) == 1, within=10, what="the message to lie in the cancelled queue")
    assert not starts(out, "left")
    assert "ok" in control.add_consumer(extra, reply=True, timeout=30, limit=1)[0]["w1@test"]
    assert left.get(timeout=30) == "left"
    for n in range(5):  # no connection is left behind by a cancelled queue
        control.cancel_consumer(extra, reply=True, timeout=30, limit=1)
        until(lambda: queues_of(project.app) == {broker.queue}, within=30, what="the queue to be left")
        control.add_consumer(extra, reply=True, timeout=30, limit=1)
        run(f"again-{n}", extra)
    run("last", broker.queue)
    assert "Connection to broker lost" not in worker.log()
    assert len(starts(out)) == 12
    until(lambda: book.empty() and not book.waiting(extra), within=20, what="nothing to be held")
