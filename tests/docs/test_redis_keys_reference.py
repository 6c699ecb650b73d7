"""``docs/reference/redis-keys.md`` lists every key that is written, with its type and what keeps it from staying."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_hardened import DeadLetter, Hardening, harden
from celery_hardened.checkpoint.store import RedisCheckpointStore
from celery_hardened.claim_check.redis import RedisPayloadStore
from celery_hardened.dead_letter.parking import _GROUP_KEYS
from celery_hardened.dedup.store import RedisWindowStore
from celery_hardened.hardening import Hardening as State
from celery_hardened.idempotency.store import RedisClaimStore
from celery_hardened.marks import HEADER, Marks
from celery_hardened.poison.contract import Start
from tests.support.pages import codes, table, text_of

PAGE = "reference/redis-keys.md"
LUA = Path(__file__).parents[2] / "celery_hardened"
TYPES = {"hash": "hash", "zset": "sorted set", "string": "string"}


def pattern(key: str) -> re.Pattern[str]:
    """What a key of the page stands for: each word in angle brackets may be anything but empty."""
    parts = re.split(r"(<[^>]+>)", key)
    choices = {"<open or closed>": "(open|closed)", "<label>": "(task|queue|reason|fingerprint|error_type|state)"}
    return re.compile("".join(choices.get(part, ".+") if part[:1] == "<" else re.escape(part) for part in parts))


ROWS = [(codes(row[0])[0], pattern(codes(row[0])[0]), row[1], row[3]) for row in table(PAGE, "Redis keys")]


def row_of(key: str) -> tuple[str, str, str] | None:
    """The row that tells of *key*: the one that leaves the least open."""
    found = [(name, kind, lives) for name, regex, kind, lives in ROWS if regex.fullmatch(key)]
    return min(found, key=lambda row: row[0].count("<")) if found else None


@pytest.fixture
def hardening(records_url: str, unique: str) -> Iterator[State]:
    app = Celery("shop", broker=records_url, set_as_current=False)
    app.conf.update(hardened_key_prefix=f"t-{unique}", hardened_dead_letter_max_count_per_task=3)
    harden(app)
    found = Hardening.of(app)
    assert found is not None
    yield found
    found.redis.close()


def letter(number: int, **more: Any) -> DeadLetter:
    return DeadLetter(
        id=f"task-{number}-0-0", reason="permanent", task="shop.charge", task_id=f"task-{number}", queue="celery",
        error_type="ValueError", fingerprint="f1", **more,
    )  # fmt: skip


def use_everything(hardening: State) -> None:
    """Every step that writes: letters in all states and dropped ones, starts, deaths, returns, claims, switches."""
    store = hardening.dead_letters
    store.put(letter(1))
    store.put(letter(2, parked=True, group_id="g1"))
    store.begin_redrive(["task-1-0-0"], token="t1", by="me", why="test", lease=60)
    store.finish_redrive(["task-1-0-0"], token="t1")
    store.accept_start("task-1-0-0", token="t1")
    store.resolve("task-1-0-0", by="me", why="test")
    store.begin_redrive(["task-2-0-0"], token="t2", by="me", why="test", lease=60)
    store.put(letter(3, headers={HEADER: Marks(redrive=("task-2-0-0", "t2")).header()}))
    store.cancel_redrive(["task-2-0-0"], token="t2", why="test")
    store.begin_redrive(["task-2-0-0"], token="t3", by="me", why="test", lease=60)
    store.delete("task-2-0-0")  # two messages of it may be under way
    store.put(letter(4))
    store.discard("task-4-0-0", by="me", why="test")
    for number in range(5, 10):  # more than one task may have
        store.put(letter(number))
    store.sweep()

    deaths = hardening.deaths
    one, two = Start("work1", "id1", "token1"), Start("work2", "id2", "token2", 1)
    deaths.open_start(one, redelivered=True, alone=True)
    deaths.record_return(two)
    deaths.record_death(replace(one, token="token3"))
    deaths.close_start(one, finished=False)

    claims = RedisClaimStore(hardening.redis, prefix=hardening.prefix)
    lifetime = hardening.settings.death_memory
    claims.claim("shop.charge:1:5f1d", owner="o1", task_id="id1", fingerprint="f1", lease=30, lifetime=lifetime)
    claims.claim("shop.charge:1:6a2e", owner="o2", task_id="id2", fingerprint="f2", lease=30, lifetime=lifetime)
    claims.finish("shop.charge:1:6a2e", owner="o2", result=b"1", lifetime=lifetime)

    windows = RedisWindowStore(hardening.redis, prefix=hardening.prefix)
    windows.enter("shop.refresh:1:5f1d", task_id="id1", ttl=lifetime)
    windows.enter("shop.refresh:1:6a2e", task_id="id2", ttl=lifetime, window=lifetime)

    checkpoints = RedisCheckpointStore(hardening.redis, prefix=hardening.prefix)
    checkpoints.open("shop.charge:1:5f1d", owner="o1", again=False, lifetime=lifetime)
    checkpoints.save("shop.charge:1:5f1d", owner="o1", state=b"{}", lifetime=lifetime)

    payloads = RedisPayloadStore(hardening.redis, prefix=hardening.prefix)
    payloads.put("0" * 32, b"data", max_age=lifetime)

    hardening.switches.set("retries", False, by="me", why="test")
    hardening.switches.set("parking", True, by="me", why="test")


def keys(hardening: State) -> dict[str, tuple[str, int]]:
    """Every key of the database: its name with ``<prefix>`` for ours, its type and its time to live in seconds."""
    client: Redis = hardening.redis
    found = {}
    for raw in client.scan_iter():
        name = raw.decode().replace(hardening.prefix, "<prefix>", 1)
        found[name] = (TYPES[client.type(raw).decode()], client.ttl(raw))
    return found


def test_every_key_is_on_the_page_and_has_a_ttl_or_a_bound(hardening: State) -> None:
    """What the page calls bounded is gone with the last letter, and what it gives a time to live has one."""
    use_everything(hardening)
    found = keys(hardening)
    seen = set()
    for key, (kind, ttl) in found.items():
        row = row_of(key)
        assert row is not None, f"{key} is not on the page"
        name, page_kind, lives = row
        seen.add(name)
        assert kind == page_kind, key
        if lives.startswith("TTL"):
            most = 7 * 86_400 if "7 days" in lives else hardening.settings.death_memory
            assert most - 60 < ttl <= most, key
        else:
            assert lives.startswith("bound")
            assert ttl == -1, key
    assert seen == {name for name, *_ in ROWS}, "the page lists a key that nothing writes"

    store: Any = hardening.dead_letters
    for letter_id in [raw.decode() for raw in hardening.redis.hkeys(f"{hardening.prefix}:{{dead_letter}}:records")]:
        store.delete(letter_id)
    left = [key for key, (_, ttl) in keys(hardening).items() if ttl == -1]
    assert sorted(left) == ["<prefix>:switches", "<prefix>:{dead_letter}:totals"]
    assert hardening.redis.hlen(f"{hardening.prefix}:{{dead_letter}}:totals") <= 4
    assert hardening.redis.hlen(f"{hardening.prefix}:switches") == 2


def test_scripts_write_no_key_the_page_does_not_list() -> None:
    """Every key a script builds from its base is a row: also those of steps that no test takes."""
    built = set()
    for path in LUA.rglob("*.lua"):
        code = re.sub(r"--.*", "", path.read_text())
        built |= set(re.findall(r"base \.\. '(:[a-z_]+)", code))
    listed = {re.sub(r"^<prefix>:\{dead_letter\}(:[a-z]+).*", r"\1", name) for name, *_ in ROWS}
    # ``base .. ':' .. side`` is open and closed.
    assert built <= listed


def test_chord_keys_are_those_of_the_page() -> None:
    """The suffixes of the result backend's keys that are extended."""
    said = next(line for line in text_of(PAGE).splitlines() if "celery-taskset-meta" in line)
    assert [""] + [code for code in codes(said) if code.startswith(".")] == list(_GROUP_KEYS)
    backend: Any = Celery("shop", backend="redis://", set_as_current=False).backend
    assert backend.get_key_for_group("g", ".s") == b"celery-taskset-meta-g.s"
