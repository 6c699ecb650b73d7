"""A task whose time has not come waits in Redis: it costs no worker anything and survives every one of them."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from celery import Celery

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.client import disconnect, listening
from tests.support.delivery_app import DELIVERY, Book, conf, starts
from tests.support.letters import letters
from tests.support.until import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
]

LEASE = 6.0
SHORT = conf(hardened_lease=LEASE)

#: Seconds until a delayed task is due: several leases, and long enough to kill and start workers meanwhile.
AHEAD = 30.0


@pytest.mark.chaos
def test_delays_survive_every_worker(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    An eta, a countdown of a plain producer and a retry wait in `unacked` under their due time; no worker
    knows of them. All workers are killed meanwhile; each starts once, unmarked, when it is due.
    """
    doomed = [start_worker(DELIVERY, concurrency=1, env=SHORT) for _ in range(2)]
    project = load_project(DELIVERY, env=SHORT)
    sent = time.time()
    due = datetime.now(timezone.utc) + timedelta(seconds=AHEAD)
    project.job.apply_async(("eta",), eta=due)
    project.later.delay("retried", AHEAD)
    plain = Celery("plain", broker=broker.url, set_as_current=False)
    plain.send_task("proj.job", ("plain",), countdown=AHEAD, queue=broker.queue)
    disconnect(plain)

    book = Book(broker)
    until(lambda: len(book.delayed()) == 3 and not book.leased(), what="three messages to wait in Redis alone")
    assert all(sent + AHEAD - 1 <= score <= time.time() + AHEAD + 1 for score in book.delayed().values())
    # A worker hears nothing for a moment after it said that it is ready.
    until(lambda: len(project.app.control.ping(timeout=2, limit=2)) == 2, within=60, what="both workers to listen")
    inspect = project.app.control.inspect(timeout=30, limit=2)
    assert inspect.scheduled() == inspect.reserved() == {"w1@test": [], "w2@test": []}
    for worker in doomed:
        worker.kill_group()

    start_worker(DELIVERY, concurrency=3, env=SHORT)
    assert len(book.delayed()) == 3, "it took longer to start a worker than the tasks wait"
    until(
        lambda: len(starts(out, "eta", "plain")) == 2 and len(starts(out, "retried")) == 2,
        within=AHEAD + 30,
        what="all to start",
    )
    until(book.empty, within=20, what="all to be acked")
    first, second = starts(out, "retried")
    late = [start.at - sent - AHEAD for start in starts(out, "eta", "plain")] + [second.at - first.at - AHEAD]
    assert all(-0.2 <= seconds <= 15 for seconds in late), f"late by {late} s"
    assert [start.order for start in starts(out, "eta", "plain")].count("eta") == 1
    assert not any(start.marked for start in starts(out))
    assert letters(project) == []


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_delays_hold_no_credit(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    Two hundred tasks of tomorrow go through a worker that may hold one message, and a task of today
    that was sent after them runs; a restart in order leaves every one of them where it waits.
    """
    env = conf(hardened_lease=LEASE)
    worker = start_worker(DELIVERY, pool=pool, concurrency=1, env=env)
    project = load_project(DELIVERY, env=env)
    with project.app.producer_pool.acquire(block=True) as producer:
        for n in range(200):
            project.job.apply_async((f"tomorrow-{n}",), countdown=86_400, producer=producer)
    assert project.job.delay("today").get(timeout=60) == "today"
    book = Book(broker)
    until(lambda: len(book.delayed()) == 200 and not book.leased(), what="all to wait in Redis")
    before = book.delayed()

    worker.restart()
    assert project.job.delay("again").get(timeout=60) == "again"
    assert book.delayed() == before
    assert book.waiting() == 0
    assert [start.order for start in starts(out)] == ["today", "again"]


def test_short_delay_is_handed_out(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """A delay under a second waits in the worker, as in Celery, and is kept to."""
    start_worker(DELIVERY, concurrency=2, env=SHORT)
    project = load_project(DELIVERY, env=SHORT)
    project.job.delay("warm").get(timeout=30)
    sent = time.time()
    project.job.apply_async(("soon",), countdown=0.8).get(timeout=30)
    assert -0.1 <= starts(out, "soon")[0].at - sent - 0.8 <= 15
    until(Book(broker).empty, within=10, what="both to be acked")


def test_revoked_while_it_waits(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """A task that was revoked while it waited is REVOKED when it is due, and not started; so is one that expired."""
    start_worker(DELIVERY, concurrency=1, env=SHORT)
    project = load_project(DELIVERY, env=SHORT)
    listening(project.app)
    revoked = project.job.apply_async(("revoked",), countdown=10)
    expired = project.job.apply_async(("expired",), countdown=10, expires=9)
    kept = project.job.apply_async(("kept",), countdown=11)
    book = Book(broker)
    until(lambda: len(book.delayed()) == 3, what="three messages to wait in Redis")
    revoked.revoke()

    assert kept.get(timeout=60) == "kept"
    until(lambda: revoked.state == "REVOKED" and expired.state == "REVOKED", what="two to be recorded as revoked")
    until(book.empty, within=10, what="the broker to hold nothing")
    assert [start.order for start in starts(out)] == ["kept"]
    assert letters(project) == []


def test_delayed_message_is_not_encoded_again(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker
) -> None:
    """What waits is the producer's text to the byte: empty lists stay lists and long integers keep their digits."""
    start_worker(DELIVERY, concurrency=1, env=SHORT)
    project = load_project(DELIVERY, env=SHORT)
    project.job.apply_async(("later",), countdown=3600, headers={"odd": [], "long": 2**62 + 1, "none": {}})
    book = Book(broker)
    until(lambda: len(book.delayed()) == 1, what="the message to wait in Redis")
    (entry,) = book.client.hvals("unacked")
    message, exchange, routing_key = json.loads(entry)
    assert (exchange, routing_key) == ("", broker.queue)
    assert message["headers"]["odd"] == []
    assert message["headers"]["none"] == {}
    assert message["headers"]["long"] == 2**62 + 1
    assert "hardened-delivery" not in message
