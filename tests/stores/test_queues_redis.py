"""Queues are read as kombu lays them out, by one pipelined call whose cost is bounded."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis.client import Pipeline

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.metrics.queues import LARGE, RedisLayout, RedisQueues

SEPARATOR = "\x06\x16"
LEASE = 60.0


@pytest.fixture
def client(each_redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(each_redis_url) as made:
        yield made


def layout(**changes: Any) -> RedisLayout:
    fields: dict[str, Any] = {
        "prefix": "",
        "separator": SEPARATOR,
        "steps": (0, 3, 6, 9),
        "index": "unacked_index",
        "lease": LEASE,
        "delayed": "h1d:",
    }
    return RedisLayout(**{**fields, **changes})


def message(published: float | None = None, eta: str | None = None, *, body: str = "e30=", **headers: Any) -> str:
    """As kombu writes one: the body first."""
    if published is not None:
        headers["hardened"] = {"v": 1, "published": published, "first_published": 5.0}
    return json.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"lang": "py", "task": "t", "eta": eta, "argsrepr": "('{', '\"')", **headers},
            "properties": {"delivery_info": {"exchange": "", "routing_key": "q"}, "priority": 0},
        }
    )


def read(client: Redis, *queues: str, now: float = 1000.0, **changes: Any) -> Any:
    return RedisQueues(client, layout(**changes), clock=lambda: now).read(queues)


# --- waiting, and since when -----------------------------------------------------------------------------------


def test_all_priorities_are_counted(client: Redis) -> None:
    """Messages of all four lists are in the depth, and the oldest of them gives the age, whatever its priority."""
    for step, published in ((0, 990.0), (3, 940.0), (6, 980.0), (9, 999.0)):
        name = f"q{SEPARATOR}{step}" if step else "q"
        client.lpush(name, message(published), message(published + 1))
    client.lpush("q-other", message(1.0))

    found = read(client, "q").queues["q"]
    assert (found.waiting, found.oldest) == (8, 60.0)


def test_the_channels_own_layout_is_used(client: Redis) -> None:
    """Separator, steps and prefix are as the channel is configured: lists that look alike are not ours."""
    client.lpush("app1:q", message(990.0))
    client.lpush("app1:q:5", message(980.0))
    client.lpush("q", message(1.0))
    client.lpush("app1:q:3", message(1.0))

    found = read(client, "q", prefix="app1:", separator=":", steps=(0, 5)).queues["q"]
    assert (found.waiting, found.oldest) == (2, 20.0)


def test_a_message_of_others_gives_no_age(client: Redis) -> None:
    """Without our header, or with one that is none, a message is counted and says nothing of its age."""
    client.lpush("plain", message())
    client.lpush("odd", message(hardened={"v": 1, "published": "yesterday"}))
    client.lpush("none", "no message at all")
    client.lpush("far", message(float("1e300")))
    client.lpush("mixed", message())
    client.lpush(f"mixed{SEPARATOR}9", message(900.0))

    found = read(client, "plain", "odd", "none", "far", "mixed", "empty").queues
    assert {name: (one.waiting, one.oldest) for name, one in found.items()} == {
        "plain": (1, None),
        "odd": (1, None),
        "none": (1, None),
        "far": (1, None),
        "mixed": (2, 100.0),
        "empty": (0, 0.0),
    }


def test_what_arguments_say_is_not_believed(client: Redis) -> None:
    """Text in a header that looks like ours is text: only the header itself is read."""
    lie = '"hardened": {"v": 1, "published": 1.0} "eta": "1970-01-01T00:00:00+00:00"'
    client.lpush("q", message(990.0, argsrepr=lie))
    client.lpush("r", message(argsrepr=lie))
    found = read(client, "q", "r").queues
    assert (found["q"].oldest, found["r"].oldest) == (10.0, None)


def test_a_delayed_message_has_waited_since_it_was_due(client: Redis) -> None:
    """One that came back to its queue when it was due has not waited all that time."""
    client.lpush("q", message(100.0, "1970-01-01T00:16:35+00:00"))  # 995
    assert read(client, "q").queues["q"].oldest == 5.0


def test_headers_may_be_before_a_large_body(client: Redis) -> None:
    """A message written by others, headers first, is read at its beginning."""
    written = json.loads(message(990.0, body="x" * 300_000))
    client.lpush("q", json.dumps({"headers": written["headers"], **written}))
    client.lpush("r", json.dumps({name: written[name] for name in ("properties", "headers", "content-type", "body")}))
    found = read(client, "q", "r").queues
    assert (found["q"].oldest, found["r"].oldest) == (10.0, 10.0)


def test_a_huge_body_stays_in_the_server(client: Redis) -> None:
    """
    Of a message of 100 MB a few words come here, Lua keeps nothing of it, and it is looked at again only after
    a while: until then its age goes on by what was seen.
    """
    client.lpush("q", message(990.0, body="x" * (100 * 1024 * 1024)))
    clock = iter([1000.0, 1005.0, 2000.0])
    queues = RedisQueues(client, layout(), clock=lambda: next(clock))
    before = client.info("stats")["total_net_output_bytes"]

    assert queues.read(["q"]).queues["q"].oldest == 10.0
    assert client.info("stats")["total_net_output_bytes"] - before < 100_000
    assert client.info("memory")["used_memory_lua"] < 10 * 1024 * 1024

    looked = client.info("commandstats")["cmdstat_lindex"]["calls"]
    client.rpush("q", message(1.0, body="x" * LARGE))
    assert queues.read(["q"]).queues["q"].oldest == 15.0
    assert client.info("commandstats")["cmdstat_lindex"]["calls"] == looked
    assert queues.read(["q"]).queues["q"].oldest == 1999.0


# --- held and delayed --------------------------------------------------------------------------------------------


def test_leases_and_delays_are_told_apart(client: Redis) -> None:
    """Leases, messages of kombu's own workers, and what waits for its time, whether that comes soon or late."""
    now = time.time()
    client.zadd("unacked_index", {f"h1:c:{n}": now + LEASE - 1 for n in range(30)})
    client.zadd("unacked_index", {f"0-kombu-{n}": now - n for n in range(4)})
    client.zadd("unacked_index", {f"h1d:c:{n}": now + 5 for n in range(7)})
    client.zadd("unacked_index", {f"h1d:c:late{n}": now + 86_400 for n in range(900)})
    found = read(client, "q")
    assert (found.unacked, found.delayed) == (34, 907)
    assert read(client, "q", index="elsewhere").unacked == 0


def test_many_are_counted_by_a_part_of_them(client: Redis) -> None:
    """Of 60,000 that tags would have to tell apart, an even part is looked at: the sum is exact, the rest close."""
    now = time.time()
    tags = {f"h1{'d' if n % 4 == 0 else ''}:c:{n:012d}": now + n * LEASE / 60_000 for n in range(60_000)}
    items = list(tags.items())
    for first in range(0, len(items), 5000):
        client.zadd("unacked_index", dict(items[first : first + 5000]))
    found = read(client)
    assert found.unacked + found.delayed == 60_000
    assert abs(found.delayed - 15_000) < 1_000


# --- one call, and what may go wrong -------------------------------------------------------------------------------


def test_one_pipelined_call(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queues there are, all is asked in one pipeline, with a script for each hundred lists."""
    sent: list[list[Any]] = []
    execute = Pipeline.execute

    def counted(pipeline: Pipeline, *args: Any, **options: Any) -> Any:
        sent.append([command[0] for command in pipeline.command_stack])
        return execute(pipeline, *args, **options)

    monkeypatch.setattr(Pipeline, "execute", counted)
    read(client, *(f"q{n}" for n in range(50)))
    (commands,) = sent
    assert {command[0] for command in commands} == {"EVALSHA"}
    assert [command[2] for command in commands] == [100, 100, 1]


def test_a_key_of_another_kind_is_left_out(client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """A queue whose list is no list has no number, is named in the log once, and hides no other."""
    client.set("bad", "x")
    client.lpush("good", message(990.0))
    queues = RedisQueues(client, layout(), clock=lambda: 1000.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert set(queues.read(["bad", "good"]).queues) == {"good"}
    assert [record.getMessage()[:12] for record in caplog.records] == ["queue 'bad' "]


def test_nothing_may_be_read(client: Redis) -> None:
    """Where no list at all can be read nothing is known, and that is no reading of zeros."""
    client.set("bad", "x")
    with pytest.raises(StoreUnavailableError, match="no queue could be read"):
        read(client, "bad")
    assert read(client).queues == {}


def test_nobody_answers() -> None:
    """A Redis that is away is one kind of error."""
    client = Redis(port=1, socket_connect_timeout=1)
    with pytest.raises(StoreUnavailableError, match="counting queues"):
        read(client, "q")
