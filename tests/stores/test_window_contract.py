"""What every store of windows promises, on Valkey, on Redis and in memory: one suite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from redis import Redis

from celery_hardened import StoreUnavailableError
from celery_hardened.dedup.contract import WindowStore
from celery_hardened.dedup.memory import InMemoryWindowStore
from celery_hardened.dedup.store import RedisWindowStore
from tests.support.ports import free_port
from tests.support.until import until

KEY = "shop.refresh:1:0123456789abcdef0123456789abcdef"


@dataclass
class Setting:
    """A store, and how to see what it keeps."""

    store: WindowStore
    pass_time: Callable[[float], None]
    client: Redis | None = None
    prefix: str = ""

    def left(self, key: str = KEY) -> float:
        return next((held.left for held in self.store.held() if held.key == key), 0.0)

    def owner(self, key: str = KEY) -> str | None:
        return next((held.task_id for held in self.store.held() if held.key == key), None)


@pytest.fixture(params=["memory", "valkey", "redis7"])
def setting(request: pytest.FixtureRequest, unique: str) -> Iterator[Setting]:
    if request.param == "memory":
        clock = [1000.0]

        def pass_time(seconds: float) -> None:
            clock[0] += seconds

        yield Setting(InMemoryWindowStore(clock=lambda: clock[0]), pass_time)
        return
    client = Redis.from_url(request.getfixturevalue(request.param).database())

    def wait(seconds: float) -> None:
        """A server has no clock to turn: the test waits for the key that it wants to see end."""
        marker = f"{unique}:clock"
        client.set(marker, 1, px=round(seconds * 1000))
        until(
            lambda: not client.exists(marker), within=30 + seconds, what=f"{seconds} s of the server's time", every=0.01
        )

    yield Setting(RedisWindowStore(client, prefix=unique), wait, client, unique)
    client.close()


# --- one at a time ------------------------------------------------------------------------------------


def test_the_first_has_it_and_the_others_are_told_whose_it_is(setting: Setting) -> None:
    """One step answers both ways, so nothing can vanish between a check and a read (H119)."""
    assert setting.store.enter(KEY, task_id="t1", ttl=60) == "t1"
    assert setting.store.enter(KEY, task_id="t2", ttl=60) == "t1"
    assert setting.store.enter(KEY, task_id="t3", ttl=60, window=60) == "t1"
    assert setting.owner() == "t1"


def test_keys_do_not_mix(setting: Setting) -> None:
    assert setting.store.enter(KEY, task_id="t1", ttl=60) == "t1"
    assert setting.store.enter(KEY + "0", task_id="t2", ttl=60) == "t2"


def test_a_key_may_hold_whatever_a_message_can_say(setting: Setting) -> None:
    """Lone surrogates too, which JSON knows and UTF-8 does not."""
    store = setting.store
    assert store.enter("k\ud800", task_id="t1", ttl=60) == "t1"
    assert store.enter("k\ud800", task_id="t2", ttl=60) == "t1"
    assert store.hold("k\ud800", task_id="t1", ttl=30)
    assert store.leave("k\ud800", task_id="t1")


def test_the_owner_enters_again_and_its_time_begins_anew(setting: Setting) -> None:
    """A retry, or a step whose answer was lost on the way."""
    setting.store.enter(KEY, task_id="t1", ttl=50)
    assert setting.store.enter(KEY, task_id="t1", ttl=500) == "t1"
    assert setting.left() > 400
    assert setting.store.enter(KEY, task_id="t1", ttl=50) == "t1"
    assert setting.left() <= 50


def test_a_refused_task_does_not_lengthen_anything(setting: Setting) -> None:
    setting.store.enter(KEY, task_id="t1", ttl=50)
    setting.store.enter(KEY, task_id="t2", ttl=500)
    assert setting.left() <= 50


def test_it_is_free_when_its_time_has_passed(setting: Setting) -> None:
    setting.store.enter(KEY, task_id="t1", ttl=0.2)
    setting.pass_time(0.25)
    assert setting.owner() is None
    assert setting.store.enter(KEY, task_id="t2", ttl=60) == "t2"


def test_only_one_of_many_gets_it(setting: Setting) -> None:
    """Eight threads, two hundred keys."""
    together = threading.Barrier(8)

    def race(number: int) -> list[str]:
        together.wait(30)
        return [setting.store.enter(f"{KEY}{i}", task_id=f"t{number}", ttl=60) for i in range(200)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(race, range(8)))
    assert all(len(set(told)) == 1 for told in zip(*answers, strict=True))


# --- only the owner -----------------------------------------------------------------------------------


def test_only_the_owner_frees_it(setting: Setting) -> None:
    """Who comes too late, after its time has passed and another has it, changes nothing (H116)."""
    setting.store.enter(KEY, task_id="t1", ttl=0.2)
    setting.pass_time(0.25)
    setting.store.enter(KEY, task_id="t2", ttl=60)
    assert setting.store.leave(KEY, task_id="t1") is False
    assert setting.owner() == "t2"
    assert setting.store.leave(KEY, task_id="t2") is True
    assert setting.owner() is None


def test_leaving_twice_is_leaving_once(setting: Setting) -> None:
    """Nor does the second one free what another has taken since."""
    setting.store.enter(KEY, task_id="t1", ttl=60)
    assert setting.store.leave(KEY, task_id="t1") is True
    assert setting.store.leave(KEY, task_id="t1") is False
    setting.store.enter(KEY, task_id="t2", ttl=60)
    assert setting.store.leave(KEY, task_id="t1") is False
    assert setting.store.enter(KEY, task_id="t3", ttl=60) == "t2"


def test_only_the_owner_says_how_much_longer(setting: Setting) -> None:
    setting.store.enter(KEY, task_id="t1", ttl=60)
    assert setting.store.hold(KEY, task_id="t2", ttl=600) is False
    assert setting.store.hold(KEY, task_id="t2", ttl=None) is False
    assert setting.store.renew(KEY, task_id="t2", lease=600) is False
    assert 50 < setting.left() <= 60


def test_nothing_is_made_of_a_key_that_nobody_holds(setting: Setting) -> None:
    """A renewal that comes too late does not take the key again."""
    assert setting.store.hold(KEY, task_id="t1", ttl=60) is False
    assert setting.store.renew(KEY, task_id="t1", lease=60) is False
    assert setting.store.leave(KEY, task_id="t1") is False
    assert setting.owner() is None


# --- how much longer ----------------------------------------------------------------------------------


def test_a_hold_shortens_and_lengthens(setting: Setting) -> None:
    setting.store.enter(KEY, task_id="t1", ttl=600)
    assert setting.store.hold(KEY, task_id="t1", ttl=30) is True
    assert setting.left() <= 30
    assert setting.store.hold(KEY, task_id="t1", ttl=900) is True
    assert setting.left() > 800
    assert setting.store.hold(KEY, task_id="t1", ttl=None) is True
    assert setting.left() > 800, "it is no window, so it has no other end"


def test_a_renewal_never_shortens(setting: Setting) -> None:
    """It may be late: the task it is for has published its retry meanwhile, and holds the key for that."""
    setting.store.enter(KEY, task_id="t1", ttl=600)
    assert setting.store.renew(KEY, task_id="t1", lease=30) is True
    assert setting.left() > 500
    setting.store.hold(KEY, task_id="t1", ttl=50)
    assert setting.store.renew(KEY, task_id="t1", lease=100) is True
    assert 50 < setting.left() <= 100


def test_a_window_is_never_lengthened(setting: Setting) -> None:
    """It was promised from the publish on; a lease of a running task shortens it until the task has ended."""
    setting.store.enter(KEY, task_id="t1", ttl=200, window=200)
    assert setting.store.hold(KEY, task_id="t1", ttl=600) is True
    assert setting.left() <= 200
    assert setting.store.renew(KEY, task_id="t1", lease=600) is True
    assert setting.left() <= 200
    assert setting.store.hold(KEY, task_id="t1", ttl=50) is True
    assert setting.left() <= 50
    assert setting.store.hold(KEY, task_id="t1", ttl=None) is True
    assert 50 < setting.left() <= 200


def test_a_key_may_be_free_before_its_window_ends(setting: Setting) -> None:
    """Of a message that expires sooner; once it has begun, the window is whole."""
    setting.store.enter(KEY, task_id="t1", ttl=50, window=600)
    assert setting.left() <= 50
    assert setting.store.hold(KEY, task_id="t1", ttl=None) is True
    assert 500 < setting.left() <= 600


def test_a_window_that_is_over_is_over(setting: Setting) -> None:
    """However its owner holds on to it."""
    setting.store.enter(KEY, task_id="t1", ttl=0.2, window=0.2)
    setting.store.hold(KEY, task_id="t1", ttl=600)
    setting.pass_time(0.25)
    assert setting.store.renew(KEY, task_id="t1", lease=600) is False
    assert setting.store.enter(KEY, task_id="t2", ttl=60) == "t2"


def test_a_key_that_was_a_window_need_not_be_one_again(setting: Setting) -> None:
    """The task was changed by a deploy from a window to ``finish``."""
    setting.store.enter(KEY, task_id="t1", ttl=20, window=20)
    setting.store.enter(KEY, task_id="t1", ttl=600)
    assert setting.left() > 500
    assert setting.store.hold(KEY, task_id="t1", ttl=900) is True
    assert setting.left() > 800


# --- seen from outside ---------------------------------------------------------------------------------


def test_a_lease_shortens_what_no_run_has_spoken_of(setting: Setting) -> None:
    setting.store.enter(KEY, task_id="t1", ttl=600)
    assert setting.store.lease(KEY, task_id="t2", lease=30, published=5.5) is False
    assert setting.left() > 500
    for _ in range(2):
        assert setting.store.lease(KEY, task_id="t1", lease=30, published=5.5) is True
        assert 20 < setting.left() <= 30


def test_a_lease_changes_nothing_once_its_run_or_a_later_one_has_spoken(setting: Setting) -> None:
    """To the microsecond: a retry may follow at once, and is leased for itself."""
    first, retry = 1_700_000_000.123456, 1_700_000_000.123457
    setting.store.enter(KEY, task_id="t1", ttl=60)
    setting.store.enter(KEY, task_id="t1", ttl=600, told=first)
    assert setting.store.lease(KEY, task_id="t1", lease=30, published=first) is False
    assert setting.store.lease(KEY, task_id="t1", lease=30, published=first - 1) is False
    assert setting.left() > 500
    assert setting.store.lease(KEY, task_id="t1", lease=30, published=retry) is True
    assert setting.store.hold(KEY, task_id="t1", ttl=500, told=retry) is True
    assert setting.store.lease(KEY, task_id="t1", lease=30, published=retry) is False
    setting.store.enter(KEY, task_id="t1", ttl=600)
    assert setting.store.lease(KEY, task_id="t1", lease=30, published=retry) is False
    assert setting.left() > 500


def test_a_lease_takes_nothing_and_lengthens_no_window(setting: Setting) -> None:
    """Nor does a key that was freed remember what was told of it."""
    assert setting.store.lease(KEY, task_id="t1", lease=30, published=1) is False
    assert setting.owner() is None
    setting.store.enter(KEY, task_id="t1", ttl=20, window=20, told=9)
    setting.store.leave(KEY, task_id="t1")
    setting.store.enter(KEY, task_id="t1", ttl=20, window=20)
    assert setting.store.lease(KEY, task_id="t1", lease=600, published=1) is True
    assert setting.left() <= 20


# --- for operators ------------------------------------------------------------------------------------


def test_what_is_held_can_be_listed(setting: Setting) -> None:
    """All of it, or that of one task, whose name is no pattern and no beginning of another."""
    setting.store.enter("shop.a:1:11", task_id="t1", ttl=60)
    setting.store.enter("shop.ab:1:22", task_id="t2", ttl=90)
    setting.store.enter("shop[a]*?:1:33", task_id="t3", ttl=90)
    held = {one.key: one for one in setting.store.held()}
    assert set(held) == {"shop.a:1:11", "shop.ab:1:22", "shop[a]*?:1:33"}
    assert held["shop.a:1:11"].task_id == "t1"
    assert 0 < held["shop.a:1:11"].left <= 60
    assert [one.key for one in setting.store.held("shop.a")] == ["shop.a:1:11"]
    assert [one.key for one in setting.store.held("shop[a]*?")] == ["shop[a]*?:1:33"]
    assert list(setting.store.held("shop")) == []


def test_many_keys_are_listed_once_each(setting: Setting) -> None:
    for number in range(2500):
        setting.store.enter(f"shop.a:1:{number}", task_id=f"t{number}", ttl=600)
    assert sorted(one.key for one in setting.store.held()) == sorted(f"shop.a:1:{n}" for n in range(2500))


def test_an_operator_frees_a_key_whoever_has_it(setting: Setting) -> None:
    setting.store.enter(KEY, task_id="t1", ttl=60)
    assert setting.store.free(KEY) == "t1"
    assert setting.store.free(KEY) is None
    assert setting.store.enter(KEY, task_id="t2", ttl=60) == "t2"


# --- Redis only ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["valkey", "redis7"])
def test_accepting_and_refusing_cost_one_command_each(request: pytest.FixtureRequest, server: str, unique: str) -> None:
    """Counted by the server; scripts it knows already."""
    with Redis.from_url(request.getfixturevalue(server).database()) as client:
        store = RedisWindowStore(client, prefix=unique)
        store.enter("warm", task_id="t0", ttl=60)
        before = client.info("commandstats")
        for _ in range(10):
            store.enter(KEY, task_id="t1", ttl=60)
        for _ in range(10):
            assert store.enter(KEY, task_id="t2", ttl=60) == "t1"
        after = client.info("commandstats")

    def more(name: str) -> int:
        calls = [stats.get(f"cmdstat_{name}", {}).get("calls", 0) for stats in (before, after)]
        return int(calls[1] - calls[0])

    assert more("evalsha") == 20
    assert {name: more(name) for name in ("eval", "get", "set", "pttl", "script|load")} == dict.fromkeys(
        ("eval", "get", "set", "pttl", "script|load"), 0
    )


def test_nothing_is_kept_without_an_end(setting: Setting) -> None:
    """Whatever is done to a key, it has a TTL."""
    if setting.client is None:
        return  # the store in memory has no keys that could stay
    store = setting.store
    store.enter("a:1:1", task_id="t1", ttl=60)
    store.enter("a:1:2", task_id="t1", ttl=60, window=60)
    for key in ("a:1:1", "a:1:2"):
        store.hold(key, task_id="t1", ttl=40)
        store.renew(key, task_id="t1", lease=50)
        store.hold(key, task_id="t1", ttl=None)
    keys = list(setting.client.scan_iter(f"{setting.prefix}:*"))
    assert len(keys) == 2
    assert all(setting.client.pttl(key) > 0 for key in keys)


def test_a_store_that_does_not_answer_says_what_it_was_asked() -> None:
    client = Redis(host="127.0.0.1", port=free_port(), retry=None)
    store = RedisWindowStore(client, prefix="p")
    with pytest.raises(StoreUnavailableError, match="taking a deduplication key"):
        store.enter(KEY, task_id="t1", ttl=60)
    with pytest.raises(StoreUnavailableError, match="listing"):
        list(store.held())
