"""The fetch script on live servers: what is taken, in which order, and that nothing is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import Connection
from redis import Redis
from redis.exceptions import ResponseError

from tests.stores.delivery import LEASE, Box, message, words


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, unique)
    client.close()


# --- a message is text ----------------------------------------------------------------------------

ODD = {
    "empty list and object": b'{"body": "", "headers": {"a": [], "b": {}}, "properties": {}}',
    "long integers": b'{"headers": {"n": 12345678901234567890, "m": -98765432109876543210}, "properties": {}}',
    "digits": b'{"headers": {"n": 0.1000000000000000055511151231257827, "z": 1.0, "x": 1e400}, "properties": {}}',
    "unicode": '{"headers": {"n": "Grüße ☃ 😀 \u2028"}, "properties": {}}'.encode(),
    "escapes": b'{"headers": {"n": "\\u00fc \\ud83d\\ude00 \\u0000 \\/ \\" \\\\"}, "properties": {}}',
    "no words of JSON": b'{"headers": {"n": NaN, "i": Infinity}, "properties": {}}',
    "tight": b'{"headers":{},"properties":{}}',
    "wide": b' \n\t{ "headers" : { } ,\r\n "properties" : { } } \n',
    "twice the same name": b'{"headers": {"a": 1, "a": 2}, "properties": {}}',
    "like an entry": b'{"headers": {"n": ", \\"\\", \\"other\\"]"}, "properties": {}, "x": ["", "q"]}',
    "not UTF-8": b'{"headers": {"n": "\xff\xfe"}, "properties": {}}',
    "huge": b'{"body": "' + b"A" * 5_000_000 + b'", "headers": {}, "properties": {}}',
}


@pytest.mark.parametrize("queue", ["q", 'a", "", "b', "Grüße ☃", "q]"], ids=["plain", "quotes", "unicode", "bracket"])
@pytest.mark.parametrize("item", ODD.values(), ids=ODD)
def test_text_is_spliced(box: Box, item: bytes, queue: str) -> None:
    """Taken, leased and put back, a message is byte for byte what it was; its entry has three elements."""
    box.put(queue, item)
    taken = box.fetch(queue)
    assert (taken.bad, taken.items, taken.queues) == (0, [item], [queue])
    [(one, entry)] = box.entries().items()
    assert entry == b"[" + item + b', "", ' + json.dumps(queue).encode() + b"]"
    assert box.scripts.give_back([one], started=False) == 1
    assert box.waiting(queue) == [item]
    assert box.entries() == {}
    assert box.scores() == {}


@pytest.mark.parametrize("item", [item for name, item in ODD.items() if name != "not UTF-8"])
def test_an_entry_is_read_by_others(box: Box, item: bytes) -> None:
    """kombu, Flower and others find a list of message, exchange and routing key."""
    box.put("q", item)
    box.fetch()
    [entry] = box.entries().values()
    found = json.loads(entry)
    assert len(found) == 3
    assert found[1:] == ["", "q"]
    assert repr(found[0]) == repr(json.loads(item))  # as text, for NaN


# --- garbage ----------------------------------------------------------------------------------------

GARBAGE = [
    b"", b"\x00", b"garbage", b"[]", b"{}", b"null", b"3", b'"text"', b"[" * 1100, b'{"properties": null}',
    b'{"properties": "text"}', b'{"body": "e30=", "properties": {}', b'{"properties": {}} {"properties": {}}',
    b"\x80\x04\x95pickle", b"\xff" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("item", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_does_not_end_the_fetch(box: Box, item: bytes) -> None:
    """What lies before and behind it is delivered, and it is kept as it was, under the name of its queue."""
    box.put("q", message(1), message(2), item, message(3), item)
    taken = box.fetch()
    assert (taken.words, taken.bad) == ([1, 2, 3], 2)
    assert [one[-3:] for one in box.tags] == ["000", "001", "002"]
    assert [(queue, raw) for _, queue, raw in box.scripts.malformed()] == [("q", item)] * 2
    assert box.waiting() == []


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    items=st.lists(st.one_of(st.binary(max_size=40), st.integers().map(message)), max_size=12), limit=st.integers(1, 5)
)
def check_nothing_is_lost(box: Box, items: list[bytes], limit: int) -> None:
    before = box.aside()
    if items:
        box.put("q", *items)
    taken: list[bytes] = []
    while box.waiting():
        got = box.fetch(limit=limit)
        assert len(got.items) + got.bad <= limit
        taken += got.items
    kept = box.aside()
    for raw in before:
        kept.remove(raw)
    assert sorted([*taken, *kept]) == sorted(items)
    assert len(box.tags) == len(taken)
    box.scripts.end(box.tags)
    for one, _, _ in box.scripts.malformed(1000):
        box.scripts.forget_malformed(one)


def test_whatever_lies_in_a_queue_is_somewhere_afterwards(box: Box) -> None:
    """Any bytes among messages: each item is leased and handed out, or set aside, and none is both."""
    check_nothing_is_lost(box)


# --- leases, numbers, acks --------------------------------------------------------------------------


def test_leases_end_in_server_time(box: Box) -> None:
    """The score of a delivery is its expiry."""
    box.put("q", message(1))
    before = box.now()
    box.fetch()
    [expiry] = box.scores().values()
    assert before + LEASE - 0.01 <= expiry <= box.now() + LEASE + 0.01


def test_fences_rise(box: Box) -> None:
    """Every delivery has a number of its own, the answer tells the last; one of nothing tells none."""
    box.put("q", *map(message, range(5)))
    assert [box.fetch(limit=2, consumer=one).fence for one in "aba"] == [2, 4, 5]
    assert box.fetch().fence == 0


def test_limit(box: Box) -> None:
    """No more than asked for is taken, garbage counted, from all queues together; the oldest first."""
    box.put("q", message(1), b"garbage", message(2), message(3))
    box.put("r", message(4))
    taken = box.fetch("q", "r", limit=3)
    assert len(taken.items) + taken.bad == 3
    assert len(box.waiting("q")) + len(box.waiting("r")) == 2
    assert box.fetch("q", "r", limit=9).words == [2, 3]


def test_acks_ride_along(box: Box) -> None:
    """Those that are named end, also if they have ended already, others stay; with or without new messages."""
    box.put("q", *map(message, range(4)))
    box.fetch(limit=3)
    first, second, third = box.tags
    assert box.fetch(acks=[first, second]).words == [3]
    assert box.fetch(acks=[first, second, "h1:x:000000000009"]).words == []
    assert third in box.tags
    assert len(box.tags) == 2
    assert set(box.scores()) == set(box.tags)


def test_what_is_not_acked_is_not_leased(box: Box) -> None:
    """``no_ack`` consumers take for good, and their messages use up no numbers."""
    box.put("q", message(1), message(2))
    box.put("reply", message("r"))
    taken = box.fetch("reply", "q", no_ack=["reply"])
    assert taken.words == ["r", 1, 2]
    assert [one[-3:] for one in box.tags] == ["000", "001"]
    assert taken.fence == 2


def test_own_list_first(box: Box) -> None:
    """What a wait brought is taken and leased before anything else, and leaves the own list."""
    box.put("q", message(1), message(2))
    box.put("r", message(3))
    assert box.wait("q") == message(1)
    assert box.fetch("r", "q", own="q", limit=2).words == [1, 3]
    assert not box.client.exists(box.keys.own_list("c", "q"))
    assert words(box.waiting("q")) == [2]


# --- which queue is next --------------------------------------------------------------------------


def test_priorities_as_kombu(box: Box, each_redis_url: str) -> None:
    """Messages that kombu published come in the order in which kombu would have taken them."""
    with Connection(each_redis_url) as connection:
        for copy in ("ours", "theirs"):
            queue = connection.SimpleQueue(copy)
            for priority in (5, 0, 9, 3, 6, None, 1, 8, 0, 9, 200, -7):
                queue.put(str(priority), priority=priority)
        theirs = []
        while (found := connection.default_channel.basic_get("theirs", no_ack=True)) is not None:
            theirs.append(found.properties.get("priority"))
    taken = box.fetch("ours", limit=100)
    assert [json.loads(item)["properties"].get("priority") for item in taken.items] == theirs
    assert len(theirs) == 12


def test_put_back_into_the_list_of_its_priority(box: Box, each_redis_url: str) -> None:
    """A round through a lease leaves every message of kombu's in the list where kombu had put it."""
    with Connection(each_redis_url) as connection:
        queue = connection.SimpleQueue("q")
        for priority in (5, 0, 9, 3, None, 200, -7, "8", "x", 2.9, True):
            queue.put("x", priority=priority)
    before = {step: box.client.lrange(box.list_of("q", step), 0, -1) for step in box.steps}
    box.fetch(limit=100)
    box.scripts.give_back(box.tags, started=False)
    assert {step: box.client.lrange(box.list_of("q", step), 0, -1) for step in box.steps} == before
    assert sum(map(len, before.values())) == 11


def test_queues_take_turns(box: Box) -> None:
    """Fair: one message of each queue in turn, the rest from those that have some; a priority goes first."""
    box.put("a", *(message(f"a{n}") for n in range(4)))
    box.put("b", message("b0"))
    box.put("c", *(message(f"c{n}") for n in range(3)))
    box.put("b", message("urgent"), step=3)
    taken = box.fetch("c", "a", "b", limit=7)
    assert taken.words == ["c0", "a0", "b0", "c1", "a1", "c2", "a2"]
    assert box.fetch("c", "a", "b").words == ["a3", "urgent"]


def test_queues_in_order(box: Box) -> None:
    """``sorted`` and ``priority`` strategies: the first queue is emptied before the second is looked at."""
    box.put("a", *(message(f"a{n}") for n in range(3)))
    box.put("b", *(message(f"b{n}") for n in range(3)))
    assert box.fetch("a", "b", fair=False, limit=4).words == ["a0", "a1", "a2", "b0"]


# --- servers in trouble ------------------------------------------------------------------------------


def test_a_key_that_is_no_list(box: Box) -> None:
    """It takes no message with it: what was taken from other queues is delivered, and else the error shows."""
    box.client.set("bad", "a string")
    box.put("q", message(1), message(2))
    assert box.fetch("q", "bad", limit=5).words == [1, 2]
    assert len(box.tags) == 2
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        box.fetch("q", "bad")
    assert len(box.tags) == 2


def test_half_a_character(box: Box) -> None:
    """Python writes and reads it (a file name that is not UTF-8, in a header); kombu's own workers run it."""
    box.put("q", json.dumps({"headers": {"word": "\udce9"}, "properties": {}}).encode())
    taken = box.fetch()
    assert taken.bad == 0
