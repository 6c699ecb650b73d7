"""Messages on their way back, on live servers: in order, where they belong, marked when they may have run."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import Connection, Exchange, Queue
from redis import Redis

from tests.stores.delivery import Box, message, words

MARK = b', "hardened-delivery": {"redelivered": true}}'


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, unique)
    client.close()


# --- order --------------------------------------------------------------------------------------------


def test_given_back_in_the_old_order(box: Box) -> None:
    """They are taken next, before all that waits, and in the order in which they were taken."""
    box.put("q", *map(message, range(6)))
    box.fetch(limit=4)
    assert box.scripts.give_back(box.tags, started=False) == 4
    assert words(box.waiting()) == [0, 1, 2, 3, 4, 5]
    assert box.scores() == {}


def test_given_back_behind_all(box: Box) -> None:
    """A requeue: behind all that waits, as kombu's own reject does."""
    box.put("q", *map(message, range(4)))
    box.fetch(limit=2)
    assert box.scripts.give_back(box.tags, started=False, last=True) == 2
    assert words(box.waiting()) == [2, 3, 0, 1]


@pytest.mark.parametrize("last", [False, True], ids=["next", "behind all"])
def test_thousands_in_order(box: Box, last: bool) -> None:
    """More than one call's worth keeps its order too."""
    box.put("q", *map(message, range(5000)))
    box.fetch(limit=5000)
    assert box.scripts.give_back(box.tags, started=False, last=last) == 5000
    assert words(box.waiting()) == list(range(5000))


def test_queues_do_not_mix(box: Box) -> None:
    """Each into its own queue and the list of its priority."""
    box.put("a", message("a"))
    box.put("b", message("b", priority=9), step=9)
    box.fetch("a", "b")
    box.scripts.give_back(box.tags, started=True)
    assert (words(box.waiting("a")), words(box.waiting("b"))) == (["a"], ["b"])
    assert box.client.llen(box.list_of("b", 9)) == 1


# --- the mark -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"", b" ", b"\n", b" \r\n\t"], ids=["tight", "space", "line", "wide"])
def test_started_ones_are_marked(box: Box, end: bytes) -> None:
    """Spliced onto the end of the text, which stays as it was: no list, number or letter of it changes."""
    item = b'{"headers": {"a": [], "n": 12345678901234567890, "u": "\\u00fc"}, "properties": {}}'
    box.put("q", item + end)
    box.fetch()
    box.scripts.give_back(box.tags, started=True)
    [found] = box.waiting()
    assert found == item[:-1] + MARK
    assert json.loads(found)["hardened-delivery"] == {"redelivered": True}


def test_marked_once(box: Box) -> None:
    """However often its workers die, and also when a mark of its own came with spaces."""
    box.put("q", message(1))
    for _ in range(5):
        box.fetch()
        box.scripts.give_back(box.tags, started=True)
    assert box.waiting() == [message(1)[:-1] + MARK]


def test_the_unstarted_are_not_marked(box: Box) -> None:
    """Given back, released, or due: nobody has run them."""
    box.put("q", message(1), message(2))
    box.fetch(limit=1)
    [one] = box.tags
    box.scripts.delay([(one, one.replace("h1:", "h1d:"), 0)])
    box.wait()
    box.scripts.release([box.member()])
    box.expire(*box.tags)
    assert box.sweep() == (0, 1, [])
    assert box.waiting() == [message(1), message(2)]


# --- stock kombu --------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0, 6])
def test_stock_restores_into_the_own_queue(box: Box, each_redis_url: str, priority: int) -> None:
    """A topic exchange reaches two queues. What one of them lost, kombu's own code puts back into that one only."""
    exchange = Exchange("events", "topic")
    one, two = Queue("one", exchange, "shop.#"), Queue("two", exchange, "#.sold")
    with Connection(each_redis_url) as connection:
        connection.Producer().publish(
            {"word": [], "n": 2**70}, exchange=exchange, routing_key="shop.sold", declare=[one, two], priority=priority
        )
        before = {name: box.waiting(name) for name in ("one", "two")}
        box.fetch("one")
        [tag] = box.tags
        connection.default_channel.qos.restore_by_tag(tag)
        assert (box.entries(), box.scores()) == ({}, {})
        [item] = box.waiting("one")
        assert box.waiting("two") == before["two"]
        found = json.loads(item)
        assert found["headers"].pop("redelivered")
        assert found["properties"]["delivery_info"].pop("redelivered")
        assert found == json.loads(before["one"][0])
        assert box.client.llen(box.list_of("one", priority)) == 1
        assert connection.SimpleQueue(one).get().payload == {"word": [], "n": 2**70}


def test_stock_reads_a_marked_message(box: Box, each_redis_url: str) -> None:
    """Our mark is no hindrance to plain consumers."""
    with Connection(each_redis_url) as connection:
        queue = connection.SimpleQueue("q")
        queue.put({"x": 1})
        box.fetch()
        box.scripts.give_back(box.tags, started=True)
        got = queue.get(timeout=10)
        assert got.payload == {"x": 1}
        got.ack()
    assert box.waiting() == []


# --- entries of others ----------------------------------------------------------------------------------


ODD_ENTRIES = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda raw, end: b"[" + raw + end, st.binary(max_size=30), st.sampled_from([b', "", "q"]', b', "", q]'])),
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(entry=ODD_ENTRIES, how=st.sampled_from(["give back", "sweep"]))
def check_no_entry_is_dropped(box: Box, entry: bytes, how: str) -> None:
    tag = "h1:odd:000000000000"
    box.client.hset(box.keys.unacked, tag, entry)
    box.client.zadd(box.keys.index, {tag: 1})
    if how == "sweep":
        box.sweep()
    else:
        box.scripts.give_back([tag], started=True)
    kept, back = box.aside(), box.waiting()
    assert len(kept) + len(back) == 1
    assert kept == [entry] if kept else entry.startswith(b"[" + back[0].removesuffix(MARK))
    assert (box.entries(), box.scores()) == ({}, {})
    box.client.delete("q", box.keys.malformed)


def test_an_entry_that_is_none_is_kept(box: Box) -> None:
    """Whatever stands under a tag of ours, it goes into a queue or is set aside as it was."""
    check_no_entry_is_dropped(box)


def test_an_entry_without_index(box: Box) -> None:
    """And an index without entry: what is there goes back, what is not is forgotten."""
    box.put("q", message(1), message(2))
    box.fetch()
    first, second = box.tags
    box.client.zrem(box.keys.index, first)
    box.client.hdel(box.keys.unacked, second)
    assert box.scripts.give_back([first, second], started=False) == 1
    assert (words(box.waiting()), box.scores()) == ([1], {})


# --- own lists --------------------------------------------------------------------------------------------


def test_an_own_list_goes_back_in_order(box: Box) -> None:
    """The consumer leaves: what its waits had brought is taken next, oldest first."""
    box.put("q", *map(message, range(4)))
    for _ in range(3):
        box.wait()
    assert words(box.waiting()) == [3]
    assert box.scripts.release([box.member()]) == 3
    assert words(box.waiting()) == [0, 1, 2, 3]


def test_a_list_that_was_left_is_still_swept(box: Box) -> None:
    """A wait that the server had not seen the end of may put a message there afterwards."""
    box.put("q", message(1))
    box.scripts.release([box.member()])
    box.client.lmove("q", box.keys.own_list("c", "q"), "RIGHT", "LEFT")
    assert box.waiting() == []
    box.sweep()
    assert words(box.waiting()) == [1]


def test_a_word_that_looks_like_the_mark(box: Box) -> None:
    """A started message is marked whatever its producer wrote into its headers."""
    box.put("q", message("hardened-delivery"))
    box.fetch()
    box.scripts.give_back(box.tags, started=True)
    [item] = box.waiting()
    assert json.loads(item).get("hardened-delivery") == {"redelivered": True}
