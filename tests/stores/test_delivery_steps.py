"""What a process does to its deliveries, on live servers: each step does its work once, for any number of tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from celery_hardened import StoreUnavailableError
from celery_hardened.transport.names import Keys
from celery_hardened.transport.scripts import DeliveryScripts, Layout
from tests.stores.delivery import LEASE, Box, message, words
from tests.support.ports import free_port


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, unique)
    client.close()


# --- each step ----------------------------------------------------------------------------------------


def test_renew(box: Box) -> None:
    """What is held lives on from now; exactly what is held no longer is told, and is not made again."""
    box.put("q", *map(message, range(3)))
    box.fetch(lease=LEASE / 2)
    first, ended, expired = box.tags
    box.scripts.end([ended])
    box.expire(expired)
    box.sweep()
    assert box.scripts.renew([first, ended, expired, "h1:x:000000000000"], lists=[], lease=LEASE) == [
        ended,
        expired,
        "h1:x:000000000000",
    ]
    assert list(box.scores()) == [first]
    assert box.scores()[first] == pytest.approx(box.now() + LEASE, abs=5)


def test_renew_lists(box: Box) -> None:
    """Also without a single tag."""
    assert box.scripts.renew([], lists=[box.member("a"), box.member("b")], lease=LEASE) == []
    found = dict(box.client.zrange(box.keys.fetching, 0, -1, withscores=True))
    assert set(found) == {box.member("a").encode(), box.member("b").encode()}
    assert min(found.values()) == pytest.approx(box.now() + LEASE, abs=5)


def test_an_expired_lease_that_nobody_took_can_be_renewed(box: Box) -> None:
    """A worker that was away longer than its lease keeps what it holds, if it is faster than the sweep."""
    box.put("q", message(1))
    box.fetch()
    box.expire(*box.tags)
    assert box.scripts.renew(box.tags, lists=[], lease=LEASE) == []
    assert box.sweep() == (0, 0, [])


def test_thousands(box: Box) -> None:
    """More tags than Lua's stack takes arguments."""
    box.put("q", *map(message, range(10_000)))
    box.fetch(limit=10_000)
    tags = box.tags
    assert box.scripts.renew(tags, lists=[box.member()], lease=LEASE) == []
    waits = [(tag, tag.replace("h1:", "h1d:"), 100.0) for tag in tags[:9000]]
    assert box.scripts.delay(waits) == 9000
    box.scripts.end(tags)
    assert box.tags == sorted(wait[1] for wait in waits)
    box.scripts.end(box.tags)
    assert (box.entries(), box.scores()) == ({}, {})


def test_set_aside(box: Box) -> None:
    """Read back as it was, under its queue, until it is forgotten."""
    raw = b'\xff\n"\x00'
    box.put("q", message(1))
    box.fetch()
    [one] = box.tags
    box.scripts.set_aside(one, 'a "q"\n', raw)
    assert (box.entries(), box.scores()) == ({}, {})
    assert box.scripts.malformed() == [(one, 'a "q"\n', raw)]
    box.scripts.forget_malformed(one)
    assert box.scripts.malformed() == []


def test_length(box: Box) -> None:
    """Of several lists together, there or not."""
    box.put("q", *map(message, range(3)))
    box.put("q", message(4), step=3)
    assert box.scripts.length([box.list_of("q"), box.list_of("q", 3), "nothing"]) == 4


# --- twice ------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Box, list[str]], Any]] = {
    "end": lambda box, tags: box.scripts.end(tags),
    "give back": lambda box, tags: box.scripts.give_back(tags, started=True),
    "give back, last": lambda box, tags: box.scripts.give_back(tags, started=False, last=True),
    "release": lambda box, tags: box.scripts.release([box.member()]),
    "delay": lambda box, tags: box.scripts.delay([(tag, tag.replace("h1:", "h1d:"), 1e6) for tag in tags]),
    "set aside": lambda box, tags: [box.scripts.set_aside(tag, "q", b"raw") for tag in tags],
    "sweep": lambda box, tags: box.sweep(),
    "forget": lambda box, tags: [box.scripts.forget_malformed(one) for one, _, _ in box.scripts.malformed()],
}


@pytest.mark.parametrize("step", STEPS)
def test_twice_is_once(box: Box, step: str) -> None:
    """The answer to a step may be lost, and then it is sent again: the second one changes nothing."""
    box.put("q", *map(message, range(4)), b"garbage")
    box.wait()
    box.fetch(limit=3)
    tags = box.tags
    box.expire(tags[0])
    STEPS[step](box, tags)
    noted = {key: value for key, value in box.state().items() if key != box.keys.fetching.encode()}
    STEPS[step](box, tags)
    assert {key: value for key, value in box.state().items() if key != box.keys.fetching.encode()} == noted


def test_renewing_twice(box: Box) -> None:
    """Both tell the same."""
    box.put("q", message(1))
    box.fetch()
    tags = [*box.tags, "h1:x:000000000000"]
    for _ in range(2):
        assert box.scripts.renew(tags, lists=[box.member()], lease=LEASE) == ["h1:x:000000000000"]
    assert list(box.scores()) == box.tags


# --- names and bounds ---------------------------------------------------------------------------------------


def test_every_key_has_the_prefix(box: Box, unique: str) -> None:
    """``global_keyprefix`` is part of each key a step makes, in every state a message can be in."""
    mine = Box(box.client, "hardened", prefix=f"{unique}-")
    mine.put("q", message(0), message(1), b"garbage", *map(message, range(2, 8)))
    mine.put("q", message("p", priority=6), step=6)
    mine.wait(consumer="dead", until=1.0)
    mine.wait(consumer="gone")
    assert mine.fetch(limit=6).bad == 1
    first, second, third, *_ = mine.tags
    mine.scripts.renew(mine.tags, lists=[mine.member("q", consumer="c")], lease=LEASE)
    mine.scripts.give_back([first], started=True)
    mine.scripts.delay([(second, "h1d:c:000000000001", 1e6)])
    mine.scripts.release([mine.member(consumer="gone")])
    mine.expire(third)
    assert mine.sweep()[0] == 1
    assert words(mine.waiting()) == [0, 4, 1, 2, 7, "p"]
    keys = [key.decode() for key in box.client.scan_iter()]
    assert len(keys) >= 6
    assert [key for key in keys if not key.startswith(f"{unique}-")] == []


def test_nothing_is_left(box: Box) -> None:
    """When all messages are done, only the counter, the note of the sweep and lists' names are there still."""
    box.put("q", *map(message, range(3)), b"garbage")
    box.wait()
    box.fetch(own="q")
    box.scripts.end(box.tags)
    for one, _, _ in box.scripts.malformed():
        box.scripts.forget_malformed(one)
    box.scripts.release([box.member()])
    box.sweep()
    left = {key.decode() for key in box.client.scan_iter()}
    assert left == {box.keys.fence, box.keys.sweep, box.keys.fetching}


def test_a_server_that_does_not_answer() -> None:
    """Every step says so, as StoreUnavailableError."""
    client = Redis(port=free_port(), socket_timeout=1, socket_connect_timeout=1, retry=None)
    scripts = DeliveryScripts(client, Keys("u", "i", "p"), Layout(prefix="", separator="-", steps=(0,)))
    for call in (
        lambda: scripts.renew(["t"], lists=[], lease=1),
        lambda: scripts.end(["t"]),
        lambda: scripts.give_back(["t"], started=False),
        lambda: scripts.release(["[]"]),
        lambda: scripts.delay([("t", "d", 1)]),
        lambda: scripts.set_aside("t", "q", b""),
        lambda: scripts.malformed(),
        lambda: scripts.forget_malformed("t"),
        lambda: scripts.sweep(visibility=1, every=1, pause=1, grace=1, page=1, keep=1),
        lambda: scripts.length(["q"]),
    ):
        with pytest.raises(StoreUnavailableError, match="the store did not answer"):
            call()
    client.close()
