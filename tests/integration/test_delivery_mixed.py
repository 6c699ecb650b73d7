"""Workers with and without the package on the same queues: what they hold of each other, and what they leave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from redis import Redis

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.until import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
]

#: One app, plain or hardened, so that both kinds of workers run the same tasks.
MIXED = """
import os
import time
from pathlib import Path

from celery import Celery
from kombu import Exchange, Queue

from celery_hardened import harden
from tests.support.notes import note

queue = os.environ["QUEUE"]
topic = Exchange(f"{queue}-topic", type="topic")

app = Celery("proj", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_default_queue=queue,
    task_queues=[
        *(Queue(f"{queue}{name}") for name in ("", "-b", "-own", "-two")),
        Queue(f"{queue}-wide", topic, routing_key="order.#"),
        Queue(f"{queue}-narrow", topic, routing_key="order.*"),
    ],
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={
        "visibility_timeout": float(os.environ["VISIBILITY"]),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)
if "LEASE" in os.environ:
    app.conf.update(
        hardened_redis_url=os.environ["RECORDS_URL"],
        hardened_key_prefix=os.environ["KEY_PREFIX"],
        hardened_lease=float(os.environ["LEASE"]),
    )
    harden(app, tasks="all")


@app.task(bind=True)
def job(self, order, seconds=0.0):
    node = self.request.hostname.split("@")[0]
    redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
    note("starts", order, node, redelivered, f"{time.time():.3f}")
    time.sleep(seconds)
    note("done", order)


@app.task(bind=True)
def pin(self, order):
    # Holds its worker until the file `unpinned` is there.
    note("starts", order, self.request.hostname.split("@")[0], False, f"{time.time():.3f}")
    while not Path(os.environ["OUT"], "unpinned").exists():
        time.sleep(0.05)
    note("done", order)
"""


def stock(visibility: float) -> dict[str, str]:
    """Environment of an app without the package."""
    return {"VISIBILITY": str(visibility)}


def hardened(visibility: float, *, lease: float, **more: str) -> dict[str, str]:
    """Environment of an app with it; *visibility* is what it grants workers without."""
    return {"VISIBILITY": str(visibility), "LEASE": str(lease), **more}


def starts(out: Path, order: str) -> list[tuple[str, float]]:
    """Node and time (wall clock, seconds) of each start of *order*."""
    found = [line.split() for line in notes(out, "starts")]
    return [(words[1], float(words[3])) for words in found if words[0] == order]


def ran_by(out: Path) -> set[str]:
    """Nodes that started anything."""
    return {line.split()[1] for line in notes(out, "starts")}


def done(out: Path) -> set[str]:
    return set(notes(out, "done"))


@pytest.fixture
def server(broker: Broker) -> Any:
    return Redis.from_url(broker.url)


@pytest.fixture
def begun(out: Path) -> Callable[[str], None]:
    def begun(order: str) -> None:
        until(lambda: starts(out, order), within=60, what=f"{order} to start")

    return begun


def wait_until_empty(server: Any, queue: str) -> None:
    """Nobody holds anything, and no queue of this test holds a message."""

    def left() -> list[bytes]:
        ours = [key for key in server.keys("*") if key.startswith((queue.encode(), b"unacked"))]
        return [key for key in ours if key != b"unacked_mutex"]

    until(lambda: not left(), within=60, what="all queues and unacked to be empty")


def test_mixed_fleet_loses_and_misroutes_nothing(
    start_worker: StartWorker,
    load_project: LoadProject,
    server: Any,
    broker: Broker,
    unique: str,
    out: Path,
    begun: Callable[[str], None],
) -> None:
    """
    A worker without the package and two hardened apps with different leases share a database and
    queues; producers of both kinds send 300 tasks of four priorities; a worker of either kind is
    killed in the middle. Every task ends, each was run only by workers of its queue, and at the end
    no message lies anywhere.

    The stock worker is killed while it runs a task: its own delivery may lose what it is just taking.
    """
    q = broker.queue
    one = hardened(6, lease=2)
    two = hardened(6, lease=5, KEY_PREFIX=f"u-{unique}")
    consumers: dict[str, set[str]] = {}

    def start(env: dict[str, str], *names: str) -> Any:
        worker = start_worker(MIXED, concurrency=1, queues=[f"{q}{name}" for name in names], env=env)
        for name in names:
            consumers.setdefault(name, set()).add(worker.name)
        return worker

    plain = start(stock(3), "", "-b", "-own")
    first = start(one, "", "-b")
    start(two, "-b", "-two")

    number = count()
    orders: dict[str, str] = {}

    def send(project: ModuleType, total: int) -> None:
        for n in (next(number) for _ in range(total)):
            name = ("", "-b", "-two")[n % 3]
            orders[f"o{n}"] = name
            project.job.apply_async((f"o{n}", 0.05), queue=f"{q}{name}", priority=(0, 3, 6, 9)[n % 4])

    send(load_project(MIXED, stock(3)), 100)
    send(load_project(MIXED, one), 100)
    until(lambda: ran_by(out) >= {"w1", "w2", "w3"}, within=60, what="all three workers to take part")
    first.kill_group()
    project = load_project(MIXED, stock(3))
    project.pin.apply_async(("pinned",), queue=f"{q}-own")
    orders["pinned"] = "-own"
    begun("pinned")
    plain.kill_group()
    (out / "unpinned").touch()
    send(project, 100)
    start(one, "", "-b")
    start(stock(3), "", "-b", "-own")

    until(lambda: done(out) == set(orders), within=120, what="every task to be done", every=0.2)
    wait_until_empty(server, q)
    strangers = [
        (order, node)
        for order, node, *_ in (line.split() for line in notes(out, "starts"))
        if node not in consumers[orders[order]]
    ]
    assert strangers == []


def test_stock_workers_task_is_left_until_its_visibility_timeout(
    start_worker: StartWorker, load_project: LoadProject, server: Any, out: Path, begun: Callable[[str], None]
) -> None:
    """
    A worker without the package renews nothing: our sweep leaves what it runs alone for the configured
    visibility timeout, however short our lease; and when it was killed, puts it back after that.
    """
    visibility = 8.0
    plain = start_worker(MIXED, concurrency=1, env=stock(3600))
    project = load_project(MIXED, stock(3600))
    project.pin.delay("held")
    begun("held")
    ((_, taken),) = server.zrange("unacked_index", 0, -1, withscores=True)
    plain.kill_group()
    start_worker(MIXED, concurrency=1, env=hardened(visibility, lease=1))
    project.job.delay("other")
    begun("other")  # it has a sweep a second from now on
    (out / "unpinned").touch()

    until(lambda: "held" in done(out), within=60, what="the task of the killed worker to run elsewhere")
    (first, _), (second, again) = starts(out, "held")
    assert (first, second) == ("w1", "w2")
    # Since it was taken, not since its body began, which comes later on a busy machine. The sweep reads the server's
    # clock, the entry has the client's: the same machine here.
    assert again - taken >= visibility - 0.5
    until(lambda: not server.exists("unacked"), what="all to be acked")


def test_stock_restore_leaves_our_lease_alone(
    start_worker: StartWorker,
    load_project: LoadProject,
    server: Any,
    broker: Broker,
    out: Path,
    begun: Callable[[str], None],
) -> None:
    """
    A worker without the package restores after one second, whatever queue it was in: not what we run
    for eight, under a lease that lives, nor what waits for its time. That it does restore is seen by
    an entry of its own kind.
    """
    q = broker.queue
    start_worker(MIXED, concurrency=1, queues=[f"{q}-own"], env=hardened(3600, lease=6))
    project = load_project(MIXED, stock(1))
    project.job.apply_async(("later",), queue=f"{q}-own", countdown=30)
    delayed = until(
        lambda: [tag for tag in server.zrange("unacked_index", 0, -1) if tag.startswith(b"h1d:")],
        within=25,
        what="the task to wait for its time",
    )
    project.job.apply_async(("long", 8.0), queue=f"{q}-own")
    begun("long")
    start_worker(MIXED, concurrency=1, queues=[q], env=stock(1))
    # As a worker without the package leaves it, when it is killed.
    project.job.apply_async(("abandoned",), queue=f"{q}-two")
    raw = server.rpop(f"{q}-two").decode()
    with server.pipeline() as pipe:
        pipe.hset("unacked", "4dbf2dd6", json.dumps([json.loads(raw), "", q]))
        pipe.zadd("unacked_index", {"4dbf2dd6": time.time()})
        pipe.execute()

    until(lambda: {"abandoned", "long"} <= done(out), within=60, what="both to be done")
    assert all(server.hexists("unacked", tag) for tag in delayed) or starts(out, "later")
    until(lambda: "later" in done(out), within=60, what="the delayed task to be done")
    wait_until_empty(server, q)
    assert [len(starts(out, order)) for order in ("long", "later")] == [1, 1]


def test_restored_topic_message_goes_to_its_own_queue_only(
    start_worker: StartWorker,
    load_project: LoadProject,
    server: Any,
    broker: Broker,
    out: Path,
    begun: Callable[[str], None],
) -> None:
    """
    A topic exchange put one copy into each of two queues. The hardened worker that ran one copy is
    killed, and a worker without the package restores it: into the queue it was in, not into both.
    """
    q = broker.queue
    project = load_project(MIXED, stock(1))
    with project.app.connection_for_write() as connection:
        for queue in project.app.conf.task_queues:
            queue(connection.channel()).declare()
    killed = start_worker(MIXED, concurrency=1, queues=[f"{q}-wide"], env=hardened(3600, lease=1))
    project.pin.apply_async(("copy",), queue=f"{q}-wide", routing_key="order.new")
    begun("copy")
    killed.kill_group()
    assert [server.llen(f"{q}-{name}") for name in ("wide", "narrow")] == [0, 1]
    (out / "unpinned").touch()
    # Not less: what it takes more than that to run and to ack it would restore, and run, once more itself.
    start_worker(MIXED, concurrency=1, queues=[f"{q}-wide", f"{q}-narrow"], env=stock(3))

    until(lambda: len(starts(out, "copy")) >= 3, within=60, what="both copies to run")
    wait_until_empty(server, q)
    assert [node for node, _ in starts(out, "copy")] == ["w1", "w2", "w2"]


def test_two_apps_with_different_leases(
    start_worker: StartWorker,
    load_project: LoadProject,
    server: Any,
    broker: Broker,
    unique: str,
    out: Path,
    begun: Callable[[str], None],
) -> None:
    """
    Two apps share a database, one with a lease of 1 s, one of 8 s. The second one's worker is killed:
    the first one's sweep puts its message back, into its queue, and not before its own lease ran out.
    """
    q = broker.queue
    patient = hardened(3600, lease=8, KEY_PREFIX=f"u-{unique}")
    start_worker(MIXED, concurrency=1, queues=[q], env=hardened(3600, lease=1))
    killed = start_worker(MIXED, concurrency=1, queues=[f"{q}-two"], env=patient)
    project = load_project(MIXED, stock(3600))
    project.pin.apply_async(("held",), queue=f"{q}-two")
    begun("held")
    killed.kill_group()
    ((_, expiry),) = server.zrange("unacked_index", 0, -1, withscores=True)
    assert expiry - server.time()[0] > 3, "what is left of a lease of 8 s that is renewed every third of it"

    def back() -> bool:
        asked = server.time()[0]
        there = bool(server.llen(f"{q}-two"))
        assert not there or asked >= expiry - 1, f"taken {expiry - asked} s too early"
        return there

    until(back, within=60, what="the killed worker's message to be back in its queue")
    assert server.llen(q) == 0
    (out / "unpinned").touch()
    start_worker(MIXED, concurrency=1, queues=[f"{q}-two"], env=patient)
    until(lambda: "held" in done(out), within=60, what="it to run again")
    wait_until_empty(server, q)
