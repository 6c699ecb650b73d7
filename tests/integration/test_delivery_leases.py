"""A lease: a healthy task starts once however long it runs, and a dead worker's tasks start elsewhere soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.delivery_app import DELIVERY, Book, conf, starts
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
]

LEASE = 3.0
SHORT = conf(hardened_lease=LEASE)


@pytest.mark.parametrize("pool", POOLS)
def test_long_task_starts_once(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    A task of three leases, beside it one that asked for an eta four leases ahead and one that asked
    for a retry as late: one start each, on two workers of every pool, none before its time and none
    much after it; at the end the broker holds nothing.
    """
    for _ in range(2):
        start_worker(DELIVERY, pool=pool, concurrency=2, env=SHORT)
    project = load_project(DELIVERY, env=SHORT)
    ahead = 4 * LEASE
    long = project.job.delay("long", 3 * LEASE + 1)
    sent = time.time()
    eta = project.job.apply_async(("eta",), countdown=ahead)
    retried = project.later.delay("retried", ahead)

    assert [result.get(timeout=90) for result in (long, eta, retried)] == ["long", "eta", "retried"]
    book = Book(broker)
    until(book.empty, within=20, what="all to be acked")
    assert [start.order for start in starts(out, "long", "eta")] == ["long", "eta"]
    assert not any(start.marked for start in starts(out))
    first, second = starts(out, "retried")
    assert (first.retries, second.retries) == (0, 1)
    late = (starts(out, "eta")[0].at - sent - ahead, second.at - first.at - ahead)
    assert all(-0.2 <= seconds <= 15 for seconds in late), f"late by {late} s"
    assert letters(project) == []


@pytest.mark.chaos
def test_killed_workers_tasks_start_elsewhere(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    kill -9 of a whole worker: what it ran and what it had taken for later start elsewhere a lease later,
    marked as redelivered, in their old order, once each.
    """
    env = conf(hardened_lease=LEASE, worker_prefetch_multiplier=3)
    victim = start_worker(DELIVERY, concurrency=1, env=env)
    project = load_project(DELIVERY, env=env)
    orders = ["runs", "next", "last"]
    sent = [project.job.delay(order, 60.0 if order == "runs" else 0.1) for order in orders]
    book = Book(broker)
    until(lambda: starts(out, "runs") and len(book.leased()) == 3, what="one to run and two to be held")

    other = start_worker(DELIVERY, concurrency=1, env=conf(hardened_lease=LEASE, worker_prefetch_multiplier=1))
    victim.kill_group()
    killed = time.time()
    until(lambda: len(starts(out, "runs")) == 2, within=60, what="the task to start elsewhere")
    again = starts(out, "runs")[1]
    assert again.at - killed <= 5 * (LEASE + 2)
    assert again.marked
    assert again.node == other.name
    other.kill_group()  # the long one would take a minute

    start_worker(DELIVERY, concurrency=1, env=env)  # one slot: starts are in the order of arrival
    assert [result.get(timeout=60) for result in sent[1:]] == orders[1:]
    rest = starts(out, "next", "last")
    assert [start.order for start in rest] == ["next", "last"]
    assert all(start.marked for start in rest)


@pytest.mark.chaos
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_lost_lease_is_noticed(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    A worker that stood still for three leases has lost what it held: the task it had not started is
    dropped without a start, the one it runs is reported, and its late ack leaves the entry of the
    worker that runs it now.
    """
    env = conf(hardened_lease=LEASE, worker_prefetch_multiplier=2)
    frozen = start_worker(DELIVERY, pool=pool, concurrency=1, env=env)
    project = load_project(DELIVERY, env=env)
    book = Book(broker)
    project.job.delay("runs", 12.0)
    held = project.job.delay("held")
    until(lambda: starts(out, "runs") and len(book.leased()) == 2, what="one to run and one to be held")
    frozen.pause()
    other = start_worker(DELIVERY, pool=pool, concurrency=2, env=env)
    until(lambda: len(starts(out, "runs")) == 2 and starts(out, "held"), within=60, what="both to start elsewhere")
    assert {start.node for start in starts(out)[1:]} == {other.name}
    assert held.get(timeout=30) == "held"
    until(lambda: len(book.leased()) == 1, within=20, what="the held one to be acked")
    mine = book.leased()

    frozen.resume()
    frozen.wait_for_log("lost the lease of proj.job[", within=30)
    until(lambda: notes(out, "done").count("runs") == 1, within=60, what="the first run to end")
    # Its ack has been refused by now or is under way; the new holder's lease goes on.
    frozen.wait_for_log("] success in", within=30)
    assert book.leased() == mine
    until(lambda: notes(out, "done").count("runs") == 2, within=60, what="the second run to end")
    until(book.empty, within=20, what="the second run to be acked")
    assert len(starts(out, "runs")) == 2
    assert [start.node for start in starts(out, "held")] == [other.name]

    # Its slot is free again.
    other.stop()
    assert project.job.delay("after").get(timeout=30) == "after"
    assert starts(out, "after")[0].node == frozen.name


@pytest.mark.chaos
def test_early_ack_is_sent_at_its_start(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    A task that acks early is acked before its body does anything: a kill -9 of the whole worker while
    it runs does not start it again.
    """
    victim = start_worker(DELIVERY, concurrency=1, env=SHORT)
    project = load_project(DELIVERY, env=SHORT)
    project.early.delay("once", 60.0)
    until(lambda: starts(out, "once"), what="the task to start")
    book = Book(broker)
    until(lambda: not book.leased(), what="the early ack")  # of a task that runs for a minute
    victim.kill_group()

    start_worker(DELIVERY, concurrency=1, env=SHORT)
    # Delayed past the time at which a lease of the dead worker would have run out and been swept.
    assert project.job.apply_async(("after",), countdown=2 * LEASE + 1).get(timeout=60) == "after"
    assert len(starts(out, "once")) == 1
    until(book.empty, within=20, what="nothing to be left")
    assert letters(project) == []
