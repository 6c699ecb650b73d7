"""What only the Redis store has to prove: its keys, its scripts, and what it does when nobody answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_hardened.dead_letter import store as store_module
from celery_hardened.dead_letter.contract import DeadLetterStore, Query, StoredLetter
from celery_hardened.dead_letter.redrive import redrive
from celery_hardened.dead_letter.store import RedisDeadLetterStore, base_key
from celery_hardened.errors import EnvelopeError, StoreUnavailableError
from tests.stores.letters import ROOMY, letter, redriven
from tests.support.ports import free_port
from tests.support.until import until

#: Every kind of key there is, as `records.lua` lists them.
FAMILIES = re.compile(
    r"(envelopes|records|expiry|totals|open|closed"
    r"|(open|closed):(task|queue|reason|fingerprint|error_type|state):.*"
    r"|counts:(task|queue|reason|fingerprint|error_type|state|reason_queue)"
    r"|fence:.+)"
)


@pytest.fixture
def client(each_redis_url: str) -> Iterator[Redis]:
    """A client of an empty database."""
    client = Redis.from_url(each_redis_url)
    yield client
    client.close()


def everything_once(store: DeadLetterStore) -> None:
    """Go through every state and every step."""
    for number in range(40):
        one = letter(task=f"shop.t{number % 7}", fingerprint=f"f{number}", parked=number % 3 == 0, group_id="g")
        store.put(one)
        store.begin_redrive([one.id], token="a", by="ann", why="", lease=1e-6)
        store.begin_redrive([one.id], token="b", by="ann", why="", lease=60)
        match number % 5:
            case 0:
                store.finish_redrive([one.id], token="b")
                store.put(redriven(one))
            case 1:
                store.accept_start(one.id, token="a")
                store.resolve(one.id, by="w", why="")
            case 2:
                store.discard(one.id, by="ann", why="")
            case 3:
                store.cancel_redrive([one.id], token="b", why="")
    store.put_many([StoredLetter(letter=letter(), state="dead", stored_at=1.0)])


def test_every_key_is_known_and_bounded_or_has_a_lifetime(client: Redis) -> None:
    """
    After everything was done, no key is of a kind that is not documented; when the
    letters have grown old and were swept, only the counters are left, and fences
    that expire.
    """
    store = RedisDeadLetterStore(client, prefix="p", retention=replace(ROOMY, max_age=0.5, closed_max_age=0.5))
    everything_once(store)
    keys = {key.decode() for key in client.scan_iter()}
    assert keys
    for key in keys:
        assert key.startswith("p:{dead_letter}:"), key
        assert FAMILIES.fullmatch(key.removeprefix("p:{dead_letter}:")), key

    until(
        lambda: store.sweep() == 0 and store.count(Query()) == 0 and not client.exists(f"{base_key('p')}:expiry"),
        what="all letters to be swept",
    )

    def left() -> dict[str, int]:
        return {key.decode().removeprefix("p:{dead_letter}:"): client.pttl(key) for key in client.scan_iter()}

    fences = {name for name in left() if name.startswith("fence:")}
    assert left().keys() - fences == {"totals"}
    assert fences
    for fence in fences:
        store.accept_start(fence.removeprefix("fence:"), token="b")
    assert {0 < left()[fence] <= 7 * 24 * 3600 * 1000 for fence in fences} == {True}
    assert client.hkeys(f"{base_key('p')}:totals") == [b"bytes", b"dropped_age"]
    assert client.hget(f"{base_key('p')}:totals", "bytes") == b"0"


def test_all_keys_share_one_slot(client: Redis) -> None:
    """One hash tag, the first in the key, so that scripts work on a cluster; the prefix stays in front of it,
    where access rules look."""
    store = RedisDeadLetterStore(client, prefix="shop_hardened", retention=ROOMY)
    everything_once(store)
    for key in client.scan_iter():
        assert re.match(rb"shop_hardened:\{dead_letter\}:", key)


def test_prefixes_keep_stores_apart(client: Redis) -> None:
    """Two apps on one database do not see each other's letters."""
    one, other = (RedisDeadLetterStore(client, prefix=prefix, retention=ROOMY) for prefix in ("one", "other"))
    one.put(letter("x"))
    assert other.count(Query()) == 0
    assert other.put(letter("x"))


def test_a_server_that_forgot_the_scripts_is_told_again(client: Redis) -> None:
    """A restart or a failover empties the script cache; nothing else notices. Pipelines too."""
    store = RedisDeadLetterStore(client, prefix="p", retention=ROOMY)
    store.put(letter())
    client.script_flush()
    store.put(letter())
    client.script_flush()
    assert store.put_many([StoredLetter(letter=letter(), state="dead", stored_at=1.0)]) == 1
    assert store.count(Query()) == 3


class AnswersGetLost(Redis):
    """The server takes every script, and its answer never arrives; so it is sent again."""

    def evalsha(self, *args: Any) -> Any:
        super().evalsha(*args)
        return super().evalsha(*args)


def test_a_step_that_is_repeated_answers_the_same(each_redis_url: str) -> None:
    """
    redis-py repeats a command when the connection breaks. Nothing may happen twice,
    and who closed a letter must learn that it was they: a chord may depend on it.
    """
    with AnswersGetLost.from_url(each_redis_url) as client:
        client.script_load("return 1")
        store = RedisDeadLetterStore(client, prefix="p", retention=ROOMY)
        one, two, three = letter(), letter(), letter()
        for each in (one, two, three):
            store.put(each)
        assert store.stats().by_state == {"dead": 3}

        assert store.discard(one.id, by="ann", why="")
        assert store.resolve(two.id, by="w", why="")
        assert [each.letter for each in store.begin_redrive([three.id], token="a", by="", why="", lease=60)] == [three]
        assert store.finish_redrive([three.id], token="a") == 1
        assert store.accept_start(three.id, token="a")
        assert [len(store.get(each.id).audit) for each in (one, two, three)] == [1, 1, 1]
        store.put(redriven(three))
        assert [entry.action for entry in store.get(three.id).audit] == ["redrive", "died again"]


def test_a_walk_in_many_small_steps_finds_the_same(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is held up for a few thousand entries at most; who asks does not notice."""
    store = RedisDeadLetterStore(client, prefix="p", retention=ROOMY)
    for number in range(100):
        store.put(letter(queue="slow" if number % 10 == 0 else "billing", parked=number % 4 == 0, group_id="g"))
    queries = (Query(), Query(queue="slow", task="shop.charge"), Query(state="parked", queue="billing"))

    def answers() -> list[object]:
        found: list[object] = [store.parked_groups()]
        for query in queries:
            found += [store.find(query, limit=60), store.find(query, limit=5), store.count(query), [*store.ids(query)]]
        return found

    at_once = answers()
    monkeypatch.setattr(store_module, "_BATCH", 4)
    monkeypatch.setattr(store_module, "_BUDGET", 7)
    assert answers() == at_once


def test_a_sweep_applies_a_bound_that_was_lowered(client: Redis) -> None:
    """Letters of a task that is not written any more go too, the oldest first."""
    roomy = RedisDeadLetterStore(client, prefix="p", retention=ROOMY)
    ids = [letter().id for _ in range(6)]
    for one in ids:
        roomy.put(letter(one))
    roomy.put(other := letter(task="shop.ship"))

    tight = RedisDeadLetterStore(client, prefix="p", retention=replace(ROOMY, max_count_per_task=2))
    assert tight.sweep(limit=3) == 3
    assert tight.sweep() == 1

    assert [*tight.ids(Query())] == [*ids[4:], other.id]
    assert tight.stats().dropped == {"count": 4}


def test_a_redrive_leaves_alone_what_its_own_messages_end_in(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redrive of more letters than one step walks must not chase the ones that die again meanwhile."""
    monkeypatch.setattr(store_module, "_BUDGET", 2)
    store = RedisDeadLetterStore(client, prefix="p", retention=ROOMY)
    ids = [letter().id for _ in range(6)]
    for one in ids:
        store.put(letter(one))

    def die_again(seen: int, _total: int) -> None:
        if seen < 50:
            store.put(letter())

    app = Celery("shop", broker="memory://", set_as_current=False)
    report = redrive(app, store, Query(), by="ann", why="", redrive_max=3, batch=2, progress=die_again)

    assert report.sent == 6
    assert {store.get(one).state for one in ids} == {"redriven"}
    assert store.count(Query()) == 3


def test_scripts_use_no_command_newer_than_redis_6_2() -> None:
    """The oldest server supported; ZMSCORE and SET KEEPTTL are its newest."""
    known = {"TIME", "GET", "SET", "HGET", "HSET", "HDEL", "HEXISTS", "HINCRBY", "HGETALL", "ZADD", "ZREM"} | {
        *("ZCARD", "ZCOUNT", "ZINCRBY", "ZMSCORE", "ZSCORE", "ZRANGE", "ZREVRANGE"),
        *("ZRANGEBYSCORE", "ZREVRANGEBYSCORE"),
    }
    used = set()
    for file in resources.files("celery_hardened.dead_letter").iterdir():
        if file.name.endswith(".lua"):
            used |= set(re.findall(r"redis\.call\('(\w+)'", file.read_text("utf-8")))
    assert used <= known, used - known
    assert "ZMSCORE" in used


def test_every_method_says_when_nobody_answers() -> None:
    """``StoreUnavailableError`` that names the operation, with the Redis error as its cause, no password in it."""
    client = Redis(port=free_port(), password="sesame", retry=Retry(NoBackoff(), 0))
    store = RedisDeadLetterStore(client, prefix="p", retention=ROOMY)
    one = StoredLetter(letter=letter(), state="dead", stored_at=1.0)
    calls = {
        "writing a dead letter": lambda: store.put(one.letter),
        "importing dead letters": lambda: store.put_many([one]),
        "reading a dead letter": lambda: store.get("x"),
        "searching dead letters": lambda: store.find(Query()),
        "counting dead letters": store.stats,
        "beginning a redrive": lambda: store.begin_redrive(["x"], token="t", by="", why="", lease=1),
        "finishing a redrive": lambda: store.finish_redrive(["x"], token="t"),
        "cancelling a redrive": lambda: store.cancel_redrive(["x"], token="t", why=""),
        "asking whether a redriven message may run": lambda: store.accept_start("x", token="t"),
        "closing a dead letter": lambda: store.resolve("x", by="", why=""),
        "deleting a dead letter": lambda: store.delete("x"),
        "sweeping dead letters": store.sweep,
    }
    for operation, call in calls.items():
        with pytest.raises(StoreUnavailableError, match=f"^{operation} failed") as caught:
            call()
        assert caught.value.__cause__ is not None
        assert "sesame" not in str(caught.value)


def test_a_letter_that_cannot_be_read_is_named(client: Redis) -> None:
    """A newer release wrote it, or somebody damaged it: the error tells which, so that it can be deleted."""
    store = RedisDeadLetterStore(client, prefix="p", retention=ROOMY)
    store.put(letter("damaged"))
    client.hset(f"{base_key('p')}:envelopes", "damaged", b"nonsense")
    with pytest.raises(EnvelopeError, match="'damaged'"):
        store.find(Query())
    assert store.delete("damaged")
    assert store.find(Query()).letters == ()


def test_a_full_server_can_still_be_emptied(client: Redis) -> None:
    """At ``maxmemory`` a letter cannot be written, but old ones can be swept and deleted."""
    store = RedisDeadLetterStore(client, prefix="p", retention=replace(ROOMY, max_age=0.3))
    for _ in range(5):
        store.put(letter())
    store.put(letter("kept", max_age=3600.0))
    client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(StoreUnavailableError, match="maxmemory"):
            store.put(letter())
        until(lambda: store.sweep() >= 0 and store.count(Query()) == 1, what="old letters to be swept")
        assert store.delete("kept")
    finally:
        client.config_set("maxmemory", "0")
    assert store.stats().bytes == 0
