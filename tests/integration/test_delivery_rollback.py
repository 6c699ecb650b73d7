"""Back to plain Celery with messages in every state, and the command that leaves none behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from redis import Redis

from celery_hardened.transport.names import LEASED, tag
from celery_hardened.transport.recover import Found, Recovery
from tests.fixtures.processes import LoadProject, RunCelery, StartWorker
from tests.support.broker import Broker
from tests.support.delivery_app import DELIVERY, Book, conf
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.ports import free_port
from tests.support.until import until

pytestmark = pytest.mark.integration

#: The same tasks, and no trace of the package.
PLAIN = """
import os
import time

from celery import Celery
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"])
app.conf.update(task_default_queue=os.environ["QUEUE"], task_ignore_result=True, worker_prefetch_multiplier=1)


@app.task(bind=True, acks_late=True, max_retries=3)
def job(self, order, seconds=0.0):
    note("plain", order, int(bool(self.request.delivery_info.get("redelivered"))))


@app.task(bind=True, acks_late=True, max_retries=3)
def later(self, order, countdown):
    note("plain", order, int(bool(self.request.delivery_info.get("redelivered"))))
"""

REDIS = pytest.mark.parametrize("broker", ["redis"], indirect=True)


def plain_runs(out: Path) -> dict[str, list[str]]:
    """What the plain worker ran: for each order, whether each run came marked as redelivered."""
    runs: dict[str, list[str]] = {}
    for line in notes(out, "plain"):
        order, marked = line.split()
        runs.setdefault(order, []).append(marked)
    return runs


def records(result: Any) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@REDIS
@pytest.mark.chaos
@pytest.mark.slow
def test_roll_back_from_every_state(
    start_worker: StartWorker, load_project: LoadProject, run_celery: RunCelery, broker: Broker, out: Path
) -> None:
    """
    A hardened worker is killed while it runs tasks, others wait in the queue, for their eta, for a retry,
    in a consumer's own list, and one item is no message. By the steps of the roll-back page (kombu's delivery
    set, all hardened workers stopped, ``recover``), a plain worker with Celery's own visibility timeout
    of an hour then runs every one of them; the item is a dead letter.
    """
    book = Book(broker)
    # Its store of dead letters is away: what is no message cannot be buried, and stays set aside.
    away = {"RECORDS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    lease = conf(hardened_lease=30.0)
    worker = start_worker(DELIVERY, env={**lease, **away})
    project = load_project(DELIVERY, env=lease)
    project.job.apply_async(("eta",), countdown=25)
    project.later.delay("retried", 25)
    until(lambda: len(book.delayed()) == 2, within=60, what="two messages to wait for their time")
    book.client.lpush(broker.queue, b"{oops")
    until(lambda: book.client.hlen(book_key(book, "malformed")), within=60, what="the item to be set aside")
    for order in ("run-1", "run-2"):
        project.job.delay(order, 60)
    until(lambda: {"run-1", "run-2"} <= started(out), within=60, what="two tasks to run")
    for order in ("queued-1", "queued-2", "fetched", "fetched-long-ago"):
        project.job.delay(order)
    project.job.apply_async(("urgent",), priority=6)
    worker.kill_group()
    # What a worker leaves that is killed between its wait's answer and its fetch. The first one is
    # still registered, the others' registrations were forgotten, one awaited a priority's list.
    registered = [json.loads(one) for one in book.client.zrange(book_key(book, "fetching"), 0, -1)]
    own = next(key for key, awaited in registered if awaited == broker.queue)
    urgent = f"{broker.queue}\x06\x166"
    for awaited, key in (
        (broker.queue, own),
        (broker.queue, book_key(book, f"fetching:0123456789abcdef:{broker.queue}")),
        (urgent, book_key(book, f"fetching:0123456789abcdef:{urgent}")),
    ):
        # A wait of the killed worker may have had the urgent one: then it lies in that one's list.
        assert book.client.lmove(awaited, key, "LEFT", "LEFT") or awaited == urgent

    # --- the steps of the page -------------------------------------------------------------------
    stock = conf(hardened_redis_delivery="stock")
    refused = run_celery(DELIVERY, "hardened", "recover", "--leases", "--delayed", env=stock)
    assert refused.returncode == 1, "its leases had run out before it was asked: this machine is too slow"
    assert "hardened workers seem to run" in refused.stderr
    assert len(book.leased()) == 2
    until(lambda: all(score < book.client.time()[0] for score in unexpired(book)), within=150, what="leases to run out")
    would = records(
        run_celery(DELIVERY, "hardened", "recover", "--leases", "--delayed", "--dry-run", "--json", env=stock)
    )
    assert {name: one["selected"] for name, one in would.items() if isinstance(one, dict)} == {
        "delayed": 2, "own_lists": 3, "leases": 2, "malformed": 1
    }  # fmt: skip
    moved = records(run_celery(DELIVERY, "hardened", "recover", "--leases", "--delayed", "--json", env=stock))
    assert {name: one["moved"] for name, one in moved.items() if isinstance(one, dict)} == {
        "delayed": 2, "own_lists": 3, "leases": 2, "malformed": 1
    }  # fmt: skip
    again = records(run_celery(DELIVERY, "hardened", "recover", "--leases", "--delayed", "--json", env=stock))
    assert {one["found"] for one in again.values() if isinstance(one, dict)} == {0}
    assert [stored.letter.body for stored in letters(project)] == [b"{oops"]

    start_worker(PLAIN, concurrency=1)
    orders = {"eta", "retried", "run-1", "run-2", "queued-1", "queued-2", "fetched", "fetched-long-ago", "urgent"}
    until(lambda: set(plain_runs(out)) == orders, within=120, what="a plain worker to run all")
    runs = plain_runs(out)
    assert {order: len(times) for order, times in runs.items()} == dict.fromkeys(orders, 1)
    # What had waited longest came first.
    assert list(runs)[:2] == ["run-1", "run-2"]
    until(book.empty, within=30, what="all to be acked")


@REDIS
@pytest.mark.slow
def test_roll_back_after_a_clean_stop(
    start_worker: StartWorker, load_project: LoadProject, run_celery: RunCelery, broker: Broker, out: Path
) -> None:
    """Stopped by SIGTERM, a worker has given everything back but what waits for its time: ``recover`` needs no wait."""
    book = Book(broker)
    worker = start_worker(DELIVERY, concurrency=1)
    project = load_project(DELIVERY)
    project.job.apply_async(("eta",), countdown=600)
    until(book.delayed, within=60, what="a message to wait for its time")
    project.job.delay("running", 1.0)
    until(lambda: "running" in started(out), within=60, what="a task to run")
    for number in range(5):
        project.job.delay(f"o{number}")
    worker.stop(within=60)
    assert book.leased() == []

    found = records(
        run_celery(DELIVERY, "hardened", "recover", "--leases", "--json", env=conf(hardened_redis_delivery="stock"))
    )
    assert found["leases"]["found"] == found["own_lists"]["found"] == 0
    assert found["delayed"] == {"found": 1, "selected": 0, "moved": 0}
    start_worker(PLAIN, concurrency=1)
    rest = {f"o{number}" for number in range(5)} - set(notes(out, "done"))
    until(lambda: set(plain_runs(out)) == rest, within=60, what="a plain worker to run the rest")


# --- the command's steps, without workers -----------------------------------------------------------


class Leftovers:
    """A database in which workers left things, under a *prefix* of the whole broker."""

    def __init__(self, url: str, prefix: str = "") -> None:
        self.client: Any = Redis.from_url(url)
        self.prefix = prefix
        options = {"global_keyprefix": prefix} if prefix else {}
        self.recovery = Recovery(Connection(url, transport_options=options), prefix="h")

    def look(self) -> Found:
        return self.recovery.look()

    def lease(self, consumer: str, messages: Sequence[str], *, queue: str = "q", seconds: float = -1.0) -> list[str]:
        """What a fetch of *consumer* leaves, its lease ending *seconds* from now."""
        keys, now = self.recovery.keys, self.now()
        tags = [tag(consumer, number) for number in range(len(messages))]
        for name, message in zip(tags, messages, strict=True):
            self.client.hset(keys.unacked, name, f'[{message}, "", {json.dumps(queue)}]')
            self.client.zadd(keys.index, {name: now + seconds})
        return tags

    def own_list(
        self, consumer: str, messages: Sequence[str], *, queue: str = "q", seconds: float | None = -1.0
    ) -> str:
        """What BLMOVE leaves, oldest message first; registered for *seconds* from now, ``None``: not at all."""
        key: str = self.recovery.keys.own_list(consumer, queue)
        self.client.lpush(key, *messages)
        if seconds is not None:
            self.client.zadd(self.recovery.keys.fetching, {json.dumps([key, queue]): self.now() + seconds})
        return key

    def now(self) -> float:
        seconds, microseconds = self.client.time()
        return float(seconds + microseconds / 1e6)

    def queued(self, name: str = "q") -> list[str]:
        """Messages of a list, the next one to be taken first."""
        return [one.decode() for one in reversed(self.client.lrange(f"{self.prefix}{name}", 0, -1))]


def message(name: str, **properties: Any) -> str:
    """Text that must come back as it is: an empty list, a long integer, odd blanks."""
    return '{"body": "%s",  "headers": {"n": [], "big": 12345678901234567890}, "properties": %s}' % (  # noqa: UP031
        name, json.dumps(properties),
    )  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "shop[1]*:"])
def test_everything_goes_back_in_order(each_redis_url: str, prefix: str) -> None:
    """
    1,203 leased messages, own lists with and without a registration, a queue whose name holds colons,
    a prefix that is a pattern to SCAN: all go back, in the order they were taken, byte for byte,
    the leased ones with the mark at their end.
    """
    left = Leftovers(each_redis_url, prefix)
    leased = [message(f"leased-{number}") for number in range(1203)]
    left.lease("dead", leased)
    left.own_list("dead", [message("own-1"), message("own-2")])
    left.own_list("gone", [message("stray")], seconds=None, queue="a:b:c")
    left.client.lpush(f"{prefix}q", message("queued"))

    found = left.look()
    assert (len(found.leased), len(found.own_lists), found.consumers) == (1203, 2, 0)
    assert sum(left.recovery.empty(one, live=False) for one in found.own_lists) == 3
    assert sum(left.recovery.put_back(found.leased, started=True)) == 1203
    mark = ', "hardened-delivery": {"redelivered": true}}'
    assert left.queued() == [
        *(one[:-1] + mark for one in leased),
        message("own-1"),
        message("own-2"),
        message("queued"),
    ]
    assert left.queued("a:b:c") == [message("stray")]
    assert not left.client.exists(left.recovery.keys.unacked, left.recovery.keys.index)
    assert left.look() == Found(own_lists=(), leased=(), delayed=(), malformed=0, consumers=0, lasts=0.0)


def test_priorities_keep_their_lists(each_redis_url: str) -> None:
    """A leased message goes back into the list of its own priority, one on its way into the list it came from."""
    left = Leftovers(each_redis_url)
    left.lease("dead", [message("low"), message("high", priority=7)])
    left.own_list("dead", [message("own", priority=6)], queue="q\x06\x166")
    found = left.look()
    assert [left.recovery.empty(one, live=False) for one in found.own_lists] == [1]
    assert sum(left.recovery.put_back(found.leased, started=False)) == 2
    assert left.queued() == [message("low")]
    assert left.queued("q\x06\x166") == [message("high", priority=7), message("own", priority=6)]


def test_living_consumers_are_told_and_left_alone(each_redis_url: str) -> None:
    """
    A registration or a lease that has not run out is a worker that may live, a busy one has no registration;
    the step itself looks at the registration once more, since the worker may have come back meanwhile.
    """
    left = Leftovers(each_redis_url)
    left.own_list("waits", [message("own")], seconds=30)
    left.lease("busy", [message("leased")], seconds=60)
    found = left.look()
    assert found.consumers == 2
    assert 55 < found.lasts <= 60
    (one,) = found.own_lists
    assert one.live
    assert left.recovery.empty(one, live=False) == 0
    assert left.queued() == []
    assert left.recovery.empty(one, live=True) == 1
    assert left.queued() == [message("own")]


def test_entries_of_plain_workers_are_not_touched(each_redis_url: str) -> None:
    """What kombu's own transport holds is its visibility timeout's business; keys that look like ours are not ours."""
    left = Leftovers(each_redis_url)
    keys = left.recovery.keys
    left.client.hset(keys.unacked, "4dbf2dd6", f'[{message("theirs")}, "", "q"]')
    left.client.zadd(keys.index, {"4dbf2dd6": 1.0})
    left.client.set(f"{keys.fetching}:x:y", "no list")
    left.client.lpush("other:delivery:fetching:x:q", "another app's")
    found = left.look()
    assert (found.leased, found.delayed, found.own_lists) == ((), (), ())
    assert not any(name.startswith(LEASED) for name in found.leased)


def test_an_ended_delivery_is_not_put_back(each_redis_url: str) -> None:
    """Acked between the look and the step: nothing goes back, and nothing is counted."""
    left = Leftovers(each_redis_url)
    tags = left.lease("dead", [message("one"), message("two")])
    found = left.look()
    left.recovery.scripts.end(tags[:1])
    assert sum(left.recovery.put_back(found.leased, started=True)) == 1
    assert len(left.queued()) == 1


# --- what tests ask -----------------------------------------------------------------------------------


def book_key(book: Book, name: str) -> str:
    """Key of ours: the one prefix of this database."""
    (fence,) = book.client.keys("*:delivery:fence")
    return str(fence.decode().removesuffix("fence") + name)


def started(out: Path) -> set[str]:
    return {line.split()[0] for line in notes(out, "jobs")}


def unexpired(book: Book) -> list[float]:
    scores = [
        score for name, score in book.client.zrange("unacked_index", 0, -1, withscores=True) if name[:4] != b"h1d:"
    ]
    return scores + [score for _, score in book.client.zrange(book_key(book, "fetching"), 0, -1, withscores=True)]
