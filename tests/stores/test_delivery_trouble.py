"""Delivery's steps where the server refuses some of them: keys of another kind, no memory left."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from tests.stores.delivery import Box, message, words
from tests.support.redis_server import RedisServer
from tests.support.until import until


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, unique)
    client.close()


# --- keys of another kind -------------------------------------------------------------------------


def test_a_key_that_is_no_list_hides_no_other_queue(box: Box) -> None:
    """Wherever it stands among the queues."""
    box.client.set("bad", "a string")
    box.put("q", message(1), message(2))
    assert box.fetch("bad", "q", limit=5).words == [1, 2]


@pytest.mark.parametrize("which", ["unacked", "index", "malformed", "fence"])
def test_fetch_loses_nothing_to_a_foreign_key(box: Box, which: str) -> None:
    """Somebody else's key under one of our names: each message is still in its queue, leased, or set aside."""
    box.client.lpush(getattr(box.keys, which), "theirs")
    box.put("q", message(1), b"garbage", message(2))
    with contextlib.suppress(ResponseError):
        box.fetch()
    there = box.waiting()
    if which != "unacked":
        there += [entry.removeprefix(b"[").removesuffix(b', "", "q"]') for entry in box.entries().values()]
    if which != "malformed":
        there += box.aside()
    assert sorted(there) == sorted([message(1), b"garbage", message(2)])


@pytest.mark.parametrize("how", ["give back", "sweep"])
def test_a_queue_that_is_no_list_loses_nothing(box: Box, how: str) -> None:
    """Its messages are kept, those of other queues go back."""
    box.put("bad", message("bad"))
    box.put("q", message(1), message(2))
    box.fetch("q", "bad")
    tags = box.tags
    box.client.set("bad", "a string")
    box.expire(*tags)
    if how == "sweep":
        box.sweep()
    else:
        box.scripts.give_back(tags, started=True)
    assert [json.loads(one)["headers"]["word"] for one in box.aside()] == ["bad"]
    assert [queue for _, queue, _ in box.scripts.malformed()] == ["bad"]
    assert words(box.waiting()) == [1, 2]


def test_a_queue_that_is_no_list_does_not_end_sweeping(box: Box) -> None:
    """A dead consumer's list cannot be emptied there: everybody else's messages come back all the same."""
    box.client.set("bad", "a string")
    box.client.lpush(box.keys.own_list("dead", "bad"), message("bad"))
    box.client.zadd(box.keys.fetching, {box.member("bad", consumer="dead"): 1})
    for number in range(2):
        box.put("q", message(number))
        box.fetch()
        box.expire(*box.tags)
        box.sweep()
        assert words(box.waiting()) == [number]
        box.client.delete("q")
    assert box.client.llen(box.keys.own_list("dead", "bad")) == 1


# --- no memory left ---------------------------------------------------------------------------------


@pytest.fixture(params=["valkey", "redis7"])
def full(request: pytest.FixtureRequest, unique: str) -> Iterator[Box]:
    """A server that is full once ``fill`` is called. Nobody else uses it meanwhile."""
    server: RedisServer = request.getfixturevalue(request.param)
    client = Redis.from_url(server.database())
    yield Box(client, unique)
    client.config_set("maxmemory", 0)
    client.close()


def fill(box: Box) -> None:
    box.client.config_set("maxmemory-policy", "noeviction")
    box.client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        box.client.set("x", "x")


def test_full_fetch(full: Box) -> None:
    """Messages are taken and leased, garbage is kept: it is how a full server gets empty again."""
    full.put("q", message(1), b"garbage", message(2))
    fill(full)
    taken = full.fetch()
    assert (taken.words, taken.bad) == ([1, 2], 1)
    assert full.fetch(acks=full.tags).items == []
    assert (full.tags, full.aside()) == ([], [b"garbage"])


def test_full_renew(full: Box) -> None:
    """A lease that is renewed in vain is a task that starts twice."""
    full.put("q", message(1))
    full.fetch(lease=5)
    fill(full)
    assert full.scripts.renew(full.tags, lists=[full.member()], lease=100) == []
    assert min(full.scores().values()) > full.now() + 50


def test_full_give_back(full: Box) -> None:
    full.put("q", *map(message, range(4)))
    full.fetch(limit=3)
    fill(full)
    first, second, third = full.tags
    assert full.scripts.give_back([first], started=True) == 1
    assert full.scripts.delay([(second, "h1d:c:000000000001", 5.0)]) == 1
    full.scripts.set_aside(third, "q", b"x")
    assert words(full.waiting()) == [0, 3]
    assert full.aside() == [b"x"]


def test_full_sweep(full: Box) -> None:
    """Recovery goes on, after grace too."""
    full.put("q", message(1), message(2))
    full.wait(consumer="dead", until=1.0)
    full.fetch()
    full.expire(*full.tags)
    fill(full)
    assert full.sweep(pause=3, grace=0.01) == (0, 0, [])

    def swept() -> bool:
        full.sweep(pause=3, grace=0.01)
        return sorted(words(full.waiting())) == [1, 2]

    until(swept, within=30, what="both to come back")


def test_full_release(full: Box) -> None:
    full.put("q", message(1))
    full.wait()
    fill(full)
    assert full.scripts.release([full.member()]) == 1
    assert words(full.waiting()) == [1]
