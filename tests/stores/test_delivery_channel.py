"""A channel of ours on live servers, as Celery's loops and any other consumer drive it: by ``drain_events``."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import kombu
import pytest
from kombu import Connection, Consumer, Queue
from kombu.transport import redis as kombu_redis
from redis import Redis

from celery_hardened.transport import fetcher as fetcher_module
from celery_hardened.transport.delivery import Delivery
from celery_hardened.transport.install import compose_transport
from celery_hardened.transport.names import is_ours
from tests.stores.delivery import Box, message, words
from tests.support.until import until


class Side:
    """One process's delivery: connections through our transport, and what came."""

    def __init__(self, url: str, unique: str, **options: Any) -> None:
        self.delivery = Delivery(prefix=unique, lease=30.0, max_eta=1e6)
        self.transport = compose_transport(kombu_redis.Transport, self.delivery)
        self.connection = Connection(url, transport=self.transport, transport_options=options)
        self.got: list[Any] = []

    def consume(self, *names: str, prefetch: int = 0, no_ack: bool = False) -> Consumer:
        channel = self.connection.channel()
        consumer = Consumer(channel, [Queue(name) for name in names], on_message=self.got.append, no_ack=no_ack)
        if prefetch:
            consumer.qos(prefetch_count=prefetch)
        consumer.consume()
        return consumer

    def drain(self, count: int) -> list[Any]:
        """Turn the loop until *count* messages have come in all."""

        def came() -> bool:
            self.turn()
            return len(self.got) >= count

        until(came, within=30, what=f"{count} messages", every=0)
        return self.got

    def waiting(self, fits: Callable[[Any], bool], *, more_than: int = 0) -> list[Any]:
        """Turn the loop until so many of its connections wait that fit; those."""

        def there() -> list[Any]:
            self.turn()
            [channel] = self.delivery.consumers()
            found = [one for one in channel._fetchers if one.state == "waiting" and fits(one)]
            return found if len(found) > more_than else []

        return until(there, within=30, what="its connections to wait", every=0)

    def turn(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.connection.drain_events(timeout=0.3)

    def close(self) -> None:
        self.connection.close()
        self.delivery.close()


@pytest.fixture
def make(each_redis_url: str, unique: str) -> Iterator[Callable[..., Side]]:
    made: list[Side] = []

    def side(**options: Any) -> Side:
        made.append(Side(each_redis_url, unique, **options))
        return made[-1]

    yield side
    for one in made:
        one.close()


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, unique)
    client.close()


def test_what_comes_is_leased(make: Callable[..., Side], box: Box) -> None:
    """From the first message on, with a tag, a fence and a queue; an ack ends it."""
    side = make()
    side.consume("q")
    side.turn()
    box.put("q", message(1), message(2))
    one, two = side.drain(2)
    assert [found.headers["word"] for found in (one, two)] == [1, 2]
    assert is_ours(one.delivery_tag)
    assert box.tags == [one.delivery_tag, two.delivery_tag]
    assert [found.delivery_info["fence"] for found in (one, two)] == [1, 2]
    one.ack()
    assert box.tags == [two.delivery_tag]


def test_closing_gives_back(make: Callable[..., Side], box: Box) -> None:
    """In order, unmarked, and what no fetch was answered for as well."""
    side = make()
    side.consume("q", prefetch=3)
    box.put("q", *map(message, range(6)))
    side.drain(3)
    side.turn()
    side.connection.close()
    assert box.waiting() == [message(n) for n in range(6)]
    assert (box.entries(), box.scores()) == ({}, {})


def test_what_was_started_stays_leased(make: Callable[..., Side], box: Box) -> None:
    """Its ack comes after its channel was closed, and counts."""
    side = make()
    side.consume("q")
    box.put("q", message(1), message(2))
    one, _ = side.drain(2)
    leases = side.delivery.consumers()[0].leases
    assert leases is not None
    assert leases.start(one.delivery_tag)
    side.connection.close()
    assert box.tags == [one.delivery_tag]
    assert words(box.waiting()) == [2]
    leases.ack(one.delivery_tag, ride=False)
    assert box.entries() == {}


@pytest.mark.parametrize(
    "item",
    [b'{"properties": [], "headers": {}}', b'{"properties": {"body_encoding": "?"}, "body": "x"}', b"garbage"],
    ids=["a list", "unknown encoding", "garbage"],
)
def test_what_cannot_be_read_is_set_aside(
    make: Callable[..., Side], box: Box, item: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """As it was; those around it arrive."""
    caplog.set_level(logging.CRITICAL, "celery_hardened.transport")
    side = make()
    buried: list[Any] = []
    side.delivery.on.bury = lambda *found: buried.append(found)
    side.consume("q")
    box.put("q", message(1), item, message(2))
    assert [found.headers["word"] for found in side.drain(2)] == [1, 2]
    until(lambda: buried, within=30, what="the item to be buried")
    assert [found[1:] for found in buried] == [("q", item)]
    until(lambda: not box.aside(), within=30, what="it to be forgotten")


def test_a_marked_message_is_redelivered(make: Callable[..., Side], box: Box) -> None:
    """Said where Celery looks, and nothing of the mark is left in the message."""
    item = message(1)[:-1] + b', "hardened-delivery": {"redelivered": true}}'
    side = make()
    side.consume("q")
    box.put("q", item, message(2))
    one, two = side.drain(2)
    assert (one.delivery_info["redelivered"], one.headers["redelivered"]) == (True, True)
    assert ("redelivered" in two.delivery_info, "redelivered" in two.headers) == (False, False)


def test_no_ack_is_not_leased(make: Callable[..., Side], box: Box) -> None:
    """Replies, remote control: taken for good; nothing is left of them."""
    side = make()
    side.consume("reply", no_ack=True)
    box.put("reply", message(1))
    [one] = side.drain(1)
    assert not is_ours(one.delivery_tag)
    assert box.entries() == {}


def test_basic_get_is_kombus(make: Callable[..., Side], box: Box) -> None:
    side = make()
    box.put("q", message(1))
    found = side.connection.default_channel.basic_get("q")
    assert found.headers["word"] == 1
    assert box.tags == [found.delivery_tag]
    found.ack()
    assert box.entries() == {}


def test_an_eta_waits_in_redis(make: Callable[..., Side], box: Box) -> None:
    """It takes no credit, so the next message comes; its entry is not renewed, and is nobody's."""
    side = make()
    side.consume("q", prefetch=1)
    late = json.loads(message("late"))
    late["headers"].update(task="t", eta="2200-01-01T00:00:00+00:00")
    side.delivery.max_eta = 1e12
    box.put("q", json.dumps(late).encode(), message("now"))
    [one] = side.drain(1)
    assert one.headers["word"] == "now"
    [delayed] = [tag for tag in box.tags if tag != one.delivery_tag]
    assert delayed.startswith("h1d:")
    assert box.scores()[delayed] > box.now() + 1e9


def test_many_queues(make: Callable[..., Side], box: Box) -> None:
    """More than there are connections that wait, in every priority."""
    side = make()
    names = [f"q{n}" for n in range(12)]
    side.consume(*names)
    side.turn()
    for name in names:
        box.put(name, message(name))
        box.put(name, message(f"{name} low"), step=9)
    assert sorted(found.headers["word"] for found in side.drain(24)) == sorted([*names, *(f"{n} low" for n in names)])


@pytest.mark.parametrize("strategy", ["sorted", "priority", "round_robin"])
def test_order_strategies(make: Callable[..., Side], box: Box, strategy: str) -> None:
    """``queue_order_strategy`` means what it means in kombu."""
    side = make(queue_order_strategy=strategy)
    for name in ("b", "a"):
        box.put(name, *(message(f"{name}{n}") for n in range(3)))
    side.consume("b", "a")
    found = [one.headers["word"] for one in side.drain(6)]
    if kombu.VERSION[:2] < (5, 7) and strategy != "sorted":
        # kombu 5.6 keeps its queues in a set, so which one it begins with is chance.
        found = [word.translate(str.maketrans("ab", "ba")) for word in found] if found[0] == "a0" else found
    assert (
        found
        == {
            "sorted": ["a0", "a1", "a2", "b0", "b1", "b2"],
            "priority": ["b0", "b1", "b2", "a0", "a1", "a2"],
            "round_robin": ["b0", "a0", "b1", "a1", "b2", "a2"],
        }[strategy]
    )


def test_the_prefix_is_everywhere(make: Callable[..., Side], each_redis_url: str, unique: str) -> None:
    """Published, waited for, fetched, given back, delayed: each key has it, bindings too."""
    prefix = f"{unique}-"
    side = make(global_keyprefix=prefix)
    side.consume("q", "r")
    side.turn()
    with Connection(each_redis_url, transport_options={"global_keyprefix": prefix}) as plain:
        plain.SimpleQueue("q").put({"x": 1})
        plain.SimpleQueue("r").put({"x": 2}, priority=9)
    one, _ = side.drain(2)
    one.reject(requeue=True)
    client = Redis.from_url(each_redis_url)
    keys = [key.decode() for key in client.scan_iter()]
    client.close()
    assert f"{prefix}unacked" in keys
    assert [key for key in keys if not key.startswith(prefix)] == []


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that was begun is not over when its message is put, though the machine stood still in between."""
    for name in ("POLL", "WAIT", "WAIT_ASIDE"):
        monkeypatch.setattr(fetcher_module, name, 60.0)


def test_a_cancelled_queue(make: Callable[..., Side], box: Box) -> None:
    """Nothing of it is taken any more, others go on, and no delivery of it is forgotten."""
    side = make()
    consumer = side.consume("q", "r")
    side.turn()
    consumer.cancel_by_queue("r")
    box.put("r", message("r"))
    box.put("q", message("q"))
    assert [found.headers["word"] for found in side.drain(1)] == ["q"]
    side.turn()
    until(lambda: words(box.waiting("r")) == ["r"], within=20, what="the message to be in its queue")
    assert len(box.tags) == 1


@pytest.mark.usefixtures("long_waits")
def test_a_cancel_during_a_fetch(make: Callable[..., Side], box: Box) -> None:
    """Its answer will not be read any more: what it leased goes back at once, not when the channel closes."""
    side = make()
    consumer = side.consume("q", "r")
    [fetcher] = side.waiting(lambda found: found.awaits == "r")
    [channel] = side.delivery.consumers()
    box.put("r", message("r"))
    own = channel.own_list("r")
    until(lambda: box.client.llen(own), within=20, what="the wait to bring the message")
    with contextlib.suppress(Empty):
        fetcher.read()
    until(lambda: box.tags, within=20, what="the message to be leased")
    consumer.cancel_by_queue("r")
    for _ in range(3):
        side.turn()
    until(lambda: words(box.waiting("r")) == ["r"], within=10, what="the message to be in its queue")
    assert box.tags == []


@pytest.mark.usefixtures("long_waits")
@pytest.mark.parametrize("names", [["a", "b", "c"], ["a"]], ids=["queues", "priorities"])
def test_credit_is_kept(make: Callable[..., Side], box: Box, names: list[str]) -> None:
    """Fetches under way count: one free place, several waits answered at once, one message is taken."""
    side = make()
    side.consume(*names, prefetch=1)
    waiting = side.waiting(lambda _: True, more_than=1)
    [channel] = side.delivery.consumers()
    for fetcher in waiting:
        box.put(fetcher.queue, message(fetcher.awaits), step=fetcher.step)
        until(lambda: box.client.llen(channel.own_list(fetcher.awaits)), within=20, what="the wait to bring it")  # noqa: B023
    for fetcher in waiting:
        with contextlib.suppress(Empty):
            fetcher.read()
    assert len([fetcher for fetcher in waiting if fetcher.state == "fetching"]) == 1
    assert len(box.tags) == 1
