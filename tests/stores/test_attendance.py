"""What workers say of themselves in Redis: kept for who asks, bounded, and read by other releases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis import Redis

from celery_hardened.attendance import store as attendance
from celery_hardened.attendance.record import WorkerRecord
from celery_hardened.attendance.store import Keys, WorkerStore, lost_text
from tests.support.pages import codes, table

HERE = WorkerRecord(
    name="w1@host", pid=12, pool="prefork", concurrency=4, began=60.0, queues=("mail", "bills"), counts=True,
    held={"mail": 2}, ended={"mail": 3.5},
)  # fmt: skip


@pytest.fixture
def client(each_redis_url: str) -> Iterator[Redis]:
    made = Redis.from_url(each_redis_url)
    yield made
    made.close()


@pytest.fixture
def keys(unique: str) -> Keys:
    return Keys(unique)


@pytest.fixture
def store(client: Redis, keys: Keys) -> WorkerStore:
    return WorkerStore(client, keys)


def test_what_is_told_is_read(store: WorkerStore) -> None:
    """The last word of each worker, and how long ago it was by the server's clock."""
    store.tell("one", replace(HERE, stopping=True))
    assert store.tell("one", HERE) == 1
    assert store.tell("two", replace(HERE, name="w2@host", tried=4.0)) == 2
    found = {one.record.name: one for one in store.read().present}
    assert found["w1@host"].record == HERE
    assert found["w2@host"].record.tried == 4.0
    assert all(0 <= one.silent < 30 for one in found.values())


def test_who_ends_is_not_there_any_more(store: WorkerStore, client: Redis, keys: Keys) -> None:
    """A worker that takes its leave is forgotten, and a second leave changes nothing."""
    store.tell("one", HERE)
    store.tell("one", None)
    store.tell("one", None)
    assert store.read().present == ()
    assert not client.exists(keys.records)
    assert not client.exists(keys.seen)


def test_the_silent_are_forgotten_by_whoever_speaks(store: WorkerStore, client: Redis, keys: Keys) -> None:
    """Each word drops those that have been silent for too long, so the keys are bounded by the living."""
    store.tell("one", HERE)
    client.zadd(keys.seen, {"one": 1.0})
    store.tell("two", HERE)
    assert client.hkeys(keys.records) == [b"two"]
    assert client.zrange(keys.seen, 0, -1) == [b"two"]


def test_every_key_has_a_time_to_live(store: WorkerStore, client: Redis, keys: Keys) -> None:
    """An app that is gone leaves nothing behind."""
    store.tell("one", HERE, [lost_text(queue="mail", worker="w1@host", task="send")])
    for key in (keys.records, keys.seen, keys.lost):
        assert attendance.TTL - 60 < client.ttl(key) <= attendance.TTL, key
    assert {key.decode() for key in client.scan_iter()} == {keys.records, keys.seen, keys.lost}


def test_lost_leases_are_kept_once_and_bounded(
    store: WorkerStore, client: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word whose answer was lost is repeated: the lease stays one. Of many, the latest stay."""
    monkeypatch.setattr(attendance, "MOST_LOST", 3)
    first = lost_text(queue="mail", worker="w1@host", task="send")
    store.tell("one", HERE, [first])
    store.tell("one", HERE, [first])
    (lost,) = store.read().lost
    assert (lost.queue, lost.worker, lost.task) == ("mail", "w1@host", "send")
    for number in range(5):
        store.tell("one", HERE, [lost_text(queue=f"q{number}", worker="w", task="t")])
    assert client.zcard(keys.lost) == 3
    assert "q4" in {one.queue for one in store.read().lost}


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", '{"v":2,"name":"w"}', '{"v":1}', '{"v":1,"name":"w","held":[1]}'],
    ids=["empty", "no json", "list", "no version", "newer", "no name", "wrong type"],
)
def test_what_cannot_be_read_is_left_out(store: WorkerStore, client: Redis, keys: Keys, text: str) -> None:
    """A record of a release to come, or a damaged one, hides no other."""
    store.tell("one", HERE)
    store.tell("two", HERE)
    client.hset(keys.records, "two", text)
    client.zadd(keys.lost, {text or "x": 1.0})
    roll = store.read()
    assert [one.record for one in roll.present] == [HERE]
    assert roll.lost == ()


def test_fields_of_a_newer_release_are_ignored() -> None:
    """Workers of two releases may run side by side."""
    text = json.dumps({**json.loads(HERE.text()), "mood": "good"})
    assert WorkerRecord.parse(text) == HERE


def test_one_call_reads_all(store: WorkerStore, client: Redis) -> None:
    """However many workers there are, the answer is bounded, and costs one round trip."""
    for number in range(12):
        store.tell(str(number), replace(HERE, name=f"w{number}"))
    before = client.info("commandstats")
    assert len(store.read().present) == 12
    after = client.info("commandstats")
    for command in ("hgetall", "zrevrange", "time"):
        calls = [stats.get(f"cmdstat_{command}", {"calls": 0})["calls"] for stats in (before, after)]
        assert calls[1] - calls[0] <= 2, command


def test_the_page_of_keys_lists_these() -> None:
    """``docs/reference/redis-keys.md`` has a row for each key, and no other."""
    keys = Keys("<prefix>")
    named = {value.fget(keys) for value in vars(Keys).values() if isinstance(value, property) and value.fget}
    assert {codes(row[0])[0] for row in table("reference/redis-keys.md", "Workers")} == named
