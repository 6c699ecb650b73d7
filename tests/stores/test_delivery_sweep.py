"""The sweep on live servers: what it puts back, and above all what it leaves alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from redis import Redis

from tests.stores.delivery import LEASE, VISIBILITY, Box, message, words

MARKED = "hardened-delivery"


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, unique)
    client.close()


def stock(box: Box, tag: str, taken: float) -> None:
    """An entry as kombu's own transport leaves it, scored with the time it was *taken*."""
    box.client.hset(box.keys.unacked, tag, json.dumps([json.loads(message(tag)), "celery", "celery"]))
    box.client.zadd(box.keys.index, {tag: taken})


# --- leases -----------------------------------------------------------------------------------------


def test_an_expired_lease_goes_back(box: Box) -> None:
    """Marked, and no more is left of the delivery; a living lease stays."""
    box.put("q", message(1), message(2))
    box.fetch()
    dead, living = box.tags
    box.expire(dead)
    assert box.sweep() == (1, 0, [])
    assert box.tags == [living]
    assert list(box.scores()) == [living]
    [item] = box.waiting()
    assert json.loads(item)[MARKED] == {"redelivered": True}


def test_oldest_first(box: Box) -> None:
    """What expired first is taken next, before what waited; deliveries of one moment in the order they were taken."""
    box.put("q", *map(message, range(6)))
    box.fetch(limit=5)
    tags = box.tags
    box.expire(*tags)
    box.client.zadd(box.keys.index, {tags[3]: 1, tags[4]: 1})
    assert box.sweep() == (5, 0, [])
    assert words(box.waiting()) == [3, 4, 0, 1, 2, 5]


def test_a_delivery_that_came_back_is_another(box: Box) -> None:
    """The late ack, renewal and return of its first holder do nothing to the second."""
    box.put("q", message(1))
    box.fetch(consumer="a")
    [old] = box.tags
    box.expire(old)
    box.sweep()
    box.fetch(consumer="b")
    [new] = box.tags
    before = box.state()
    box.scripts.end([old])
    assert box.scripts.renew([old], lists=[], lease=LEASE) == [old]
    assert box.scripts.give_back([old], started=True) == 0
    assert box.scripts.delay([(old, "h1d:late", 5.0)]) == 0
    box.scripts.set_aside(old, "q", b"x")
    assert box.fetch(acks=[old]).items == []
    assert box.state() == before
    assert new != old


# --- grace ------------------------------------------------------------------------------------------------


def test_grace_after_a_pause(box: Box) -> None:
    """Nobody swept for a while: the server was away, and the living must be able to renew first."""
    box.put("q", message(1), message(2))
    box.fetch()
    dead, living = box.tags
    box.sweep()
    box.client.hset(box.keys.sweep, "at", box.now() - 100)
    box.expire(dead, living)
    for _ in range(3):
        assert box.sweep(pause=30, grace=100) == (0, 0, [])
    assert box.scripts.renew([living], lists=[], lease=LEASE) == []
    box.client.hset(box.keys.sweep, "grace", box.now() - 1)
    assert box.sweep(pause=30, grace=100) == (1, 0, [])
    assert box.tags == [living]


def test_the_first_sweep_ever_gives_grace(box: Box) -> None:
    """A new fleet beside a fleet that was cut off does not know how long."""
    box.put("q", message(1))
    box.fetch()
    box.expire(*box.tags)
    assert box.sweep(pause=3, grace=100) == (0, 0, [])


def test_grace_is_none_for_what_is_due(box: Box) -> None:
    """Delayed messages are nobody's; those of kombu's own workers have a timeout of their own."""
    box.put("q", message(1))
    box.fetch()
    [one] = box.tags
    box.scripts.delay([(one, "h1d:c:000000000000", 0.0)])
    stock(box, "theirs", box.now() - VISIBILITY - 1)
    box.expire(*[tag for tag in box.tags if tag != "theirs"])
    assert box.sweep(pause=3, grace=100) == (0, 1, ["theirs"])


def test_lists_have_grace_too(box: Box) -> None:
    box.put("q", message(1))
    box.wait(until=1.0)
    box.sweep(pause=3, grace=50)
    assert box.waiting() == []
    box.sweep(pause=1e12)
    assert box.waiting() == []
    box.client.hset(box.keys.sweep, "grace", 0)
    box.sweep()
    assert words(box.waiting()) == [1]


def test_one_sweep_at_a_time(box: Box) -> None:
    """Sooner than *every* seconds after anybody's, a sweep does nothing; a clock that was put back is no obstacle."""
    box.put("q", message(1))
    box.fetch()
    box.sweep()
    box.expire(*box.tags)
    assert box.sweep(every=100) == (0, 0, [])
    box.client.hset(box.keys.sweep, "at", box.now() + 10_000)
    assert box.sweep(every=100) == (1, 0, [])


# --- delayed ------------------------------------------------------------------------------------------------


def test_delayed_messages_are_due(box: Box) -> None:
    """At their time, unmarked, in the order of their times and before what waits."""
    box.put("q", *map(message, range(4)))
    box.fetch(limit=3)
    tags = box.tags
    assert box.scripts.delay([(tag, tag.replace("h1:", "h1d:"), 50.0 - n) for n, tag in enumerate(tags)]) == 3
    assert sorted(box.scores().values()) == pytest.approx([box.now() + n for n in (48, 49, 50)], abs=5)
    assert box.sweep() == (0, 0, [])
    box.expire(*(tag.replace("h1:", "h1d:") for tag in reversed(tags)))
    assert box.sweep() == (0, 3, [])
    assert box.waiting() == [message(n) for n in (2, 1, 0, 3)]


def test_no_delayed_message_waits_behind_a_page(box: Box) -> None:
    """What stays is stepped over, so each entry is looked at, however many wait in front of it."""
    for n in range(25):
        stock(box, f"theirs{n:02}", box.now() - 1 - n / 10)
    box.put("q", message(1))
    box.fetch()
    box.expire(*[tag for tag in box.tags if tag.startswith("h1:")])
    assert [box.sweep(page=10)[0] for _ in range(4)] == [0, 0, 1, 0]


# --- kombu's own ----------------------------------------------------------------------------------------------


def test_stock_deliveries_are_judged_by_the_visibility_timeout(box: Box) -> None:
    """Their workers do not renew: only those taken longer ago are named, and none is touched."""
    stock(box, "running", box.now() - VISIBILITY + 60)
    stock(box, "abandoned", box.now() - VISIBILITY - 60)
    stock(box, "older", box.now() - VISIBILITY - 600)
    before = box.state()
    assert box.sweep() == (0, 0, ["abandoned", "older"])
    assert box.state() == before


def test_kombus_own_sweep_leaves_ours_alone(box: Box, each_redis_url: str) -> None:
    """However short its visibility timeout: a lease that is renewed ends in the future."""
    from kombu import Connection

    box.put("q", message(1), message(2))
    box.fetch()
    first, second = box.tags
    box.scripts.delay([(second, "h1d:c:000000000001", 100.0)])
    stock(box, "theirs", box.now() - 10)
    with Connection(each_redis_url, transport_options={"visibility_timeout": 1}) as connection:
        connection.default_channel.qos.restore_visible(num=None, interval=1)
    assert box.tags == sorted([first, "h1d:c:000000000001"])


# --- dead consumers' lists --------------------------------------------------------------------------------------


def test_the_list_of_a_dead_consumer_is_swept(box: Box) -> None:
    """In order; that of one that waits still is not."""
    box.put("q", *map(message, range(4)))
    box.wait(consumer="dead", until=1.0)
    box.wait(consumer="dead", until=1.0)
    box.wait(consumer="living")
    box.client.zadd(box.keys.fetching, {box.member(consumer="dead"): box.now() - 1})
    box.sweep()
    assert words(box.waiting()) == [0, 1, 3]
    assert box.client.llen(box.keys.own_list("living", "q")) == 1


def test_a_dead_consumer_is_forgotten_at_last(box: Box) -> None:
    """Its list stays known for a while, in case a frozen process still puts something there."""
    box.client.zadd(box.keys.fetching, {box.member(consumer="new"): box.now() - 1})
    box.client.zadd(box.keys.fetching, {box.member(consumer="old"): box.now() - VISIBILITY - 1})
    box.sweep()
    assert box.client.zrange(box.keys.fetching, 0, -1) == [box.member(consumer="new").encode()]


def test_the_note_of_the_sweep_ends(box: Box) -> None:
    """It does not stay in a database that nobody uses any more."""
    box.sweep()
    assert 0 < box.client.ttl(box.keys.sweep) <= 86400


def test_oldest_first_over_pages(box: Box) -> None:
    """More than one sweep's page keeps its order too."""
    box.put("q", *map(message, range(25)))
    box.fetch(limit=25)
    box.expire(*box.tags)
    while box.tags:
        box.sweep(page=10)
    assert words(box.waiting()) == list(range(25))


def test_a_queue_of_others_is_left_to_them(box: Box) -> None:
    """A user without rights on a queue leaves its entries alone, its own go back, and nothing becomes malformed."""
    box.put("q", message(1), message(2))
    box.put("theirs", message(3))
    box.fetch("q", "theirs")
    box.expire(*box.tags)
    name = f"user{abs(hash(box.keys.prefix))}"
    keys = [box.keys.unacked, box.keys.index, box.keys.sweep, box.keys.fetching, box.keys.malformed, box.list_of("q")]
    box.client.acl_setuser(name, enabled=True, nopass=True, commands=["+@all"], keys=keys)
    try:
        box.as_user(name).sweep()
    finally:
        box.client.acl_deluser(name)
    assert sorted(words(box.waiting())) == [1, 2]
    assert len(box.entries()) == 1
    assert box.aside() == []
