"""Claims in Redis: what it costs, how long keys live, and that Lua and Python say the same."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_hardened import StoreUnavailableError
from celery_hardened.idempotency.contract import Answer, Busy, ClaimStore, Done, Won
from celery_hardened.idempotency.memory import InMemoryClaimStore
from celery_hardened.idempotency.renewal import Held, Renewals
from celery_hardened.idempotency.store import RedisClaimStore, for_renewals
from celery_hardened.lease_clock import now
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

FAR = 4_102_444_800_000  # a fence as of the year 2100, in ms
SHORT = 1.5


@pytest.fixture
def client(each_redis_url: str) -> Iterator[Redis]:
    client = Redis.from_url(each_redis_url)
    yield client
    client.close()


@pytest.fixture
def store(client: Redis, unique: str) -> RedisClaimStore:
    return RedisClaimStore(client, prefix=unique)


def claim(store: ClaimStore, owner: str, **more: Any) -> Answer:
    given: dict[str, Any] = {"task_id": "t1", "fingerprint": "f1", "lease": 60.0, "lifetime": 600.0, **more}
    return store.claim("k1", owner=owner, **given)


# --- what it costs ----------------------------------------------------------------------------------------------


def commands(client: Redis) -> dict[str, int]:
    """How often each command was called since the server started, those that scripts call included."""
    stats: dict[str, dict[str, int]] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


def test_a_run_is_two_commands(client: Redis, store: RedisClaimStore) -> None:
    """One to claim, one to finish; a repetition is one, and so are a renewal, a release and a page of renewals."""
    claim(store, "warm")
    store.finish("k1", owner="warm", result=None, lifetime=600)
    store.renew("k1", owner="warm", lease=60)
    store.release("k1", owner="warm")
    client.delete(*client.keys())

    def sent(step: Callable[[], object]) -> int:
        before = commands(client)
        step()
        after = commands(client)
        calls = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
        inner = {"time", "hmget", "hget", "hset", "pexpire", "info"}
        assert set(calls) <= {"evalsha", *inner}, calls
        return calls["evalsha"]

    assert sent(lambda: claim(store, "a")) == 1
    assert sent(lambda: claim(store, "b")) == 1
    assert sent(lambda: store.renew("k1", owner="a", lease=60)) == 1
    assert sent(lambda: store.finish("k1", owner="a", result=b"1", lifetime=600)) == 1
    assert sent(lambda: claim(store, "c")) == 1
    assert sent(lambda: store.release("k1", owner="c")) == 1


def test_many_renewals_go_together(client: Redis, store: RedisClaimStore) -> None:
    """Each gets its own answer, in order."""
    owners = {f"k{number}": f"owner {number}" for number in range(450)}
    for key, owner in owners.items():
        store.claim(key, owner=owner, task_id="t", fingerprint="", lease=60, lifetime=600)
    asked = [(key, owner if int(key[1:]) % 3 else "another") for key, owner in owners.items()]
    assert store.renew_all(asked, lease=60) == [bool(number % 3) for number in range(450)]
    assert store.renew_all([], lease=60) == []


# --- how long keys live -------------------------------------------------------------------------------------------


def test_the_key_is_one_and_lives_its_lifetime(client: Redis, store: RedisClaimStore, unique: str) -> None:
    """From each step on, never the lease's length: the fence must not begin again while a run of the key lives."""
    name = f"{unique}:claim:k1"

    def ttl() -> float:
        assert [key.decode() for key in client.scan_iter("*")] == [name]
        left = client.pttl(name) / 1000
        client.pexpire(name, 20_000)
        return left

    claim(store, "a", lease=1)
    assert 500 < ttl() <= 600
    claim(store, "a", lease=1)
    assert 500 < ttl() <= 600
    store.renew("k1", owner="a", lease=1)
    assert 500 < ttl() <= 600
    store.release("k1", owner="a")
    assert 500 < ttl() <= 600
    claim(store, "b")
    store.finish("k1", owner="b", result=b"1", lifetime=5000)
    assert 4000 < ttl() <= 5000


@pytest.mark.parametrize("step", ["claim", "finish", "renew", "release"])
def test_who_is_refused_does_not_lengthen_the_life(
    client: Redis, store: RedisClaimStore, unique: str, step: str
) -> None:
    """Duplicates of finished work that come for ever must not keep its record for ever."""
    claim(store, "a")
    store.finish("k1", owner="a", result=b"1", lifetime=600)
    client.pexpire(f"{unique}:claim:k1", 20_000)
    if step == "claim":
        assert claim(store, "b") == Done(b"1")
    elif step == "finish":
        assert not store.finish("k1", owner="b", result=b"2", lifetime=600)
    elif step == "renew":
        assert not store.renew("k1", owner="b", lease=60)
    else:
        assert not store.release("k1", owner="b")
    assert client.pttl(f"{unique}:claim:k1") <= 20_000


def test_a_record_outlives_its_lease(client: Redis, store: RedisClaimStore, unique: str) -> None:
    """Whatever lifetime was given."""
    claim(store, "a", lease=100.0, lifetime=1.0)
    assert client.pttl(f"{unique}:claim:k1") > 50_000
    store.renew("k1", owner="a", lease=100.0)
    assert client.pttl(f"{unique}:claim:k1") > 50_000


def test_the_fence_grows_when_the_clock_goes_back(client: Redis, store: RedisClaimStore, unique: str) -> None:
    """And is written to the last digit: as a rounded number it would be the same for hours."""
    claim(store, "a", lease=0)
    client.hset(f"{unique}:claim:k1", mapping={"fence": FAR, "since": FAR - 1})
    assert claim(store, "b", lease=0) == Won(FAR + 1, FAR - 1)
    assert claim(store, "c", lease=0) == Won(FAR + 2, FAR - 1)
    assert client.hget(f"{unique}:claim:k1", "fence") == str(FAR + 2).encode()


def test_a_claim_of_an_older_release_is_known_since_now(client: Redis, store: RedisClaimStore, unique: str) -> None:
    """It does not say since when it is."""
    claim(store, "a", lease=0)
    client.hdel(f"{unique}:claim:k1", "since")
    second = claim(store, "b", lease=0)
    assert isinstance(second, Won)
    assert second == Won(second.fence, second.fence)


def test_leases_are_of_the_servers_clock(
    client: Redis, store: RedisClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose clock is hours ahead takes nothing away from anybody."""
    claim(store, "a")
    monkeypatch.setattr("time.time", lambda: 9e9)
    assert isinstance(claim(store, "b"), Busy)


# --- it does not answer -------------------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_says_so() -> None:
    """Every method, as StoreUnavailableError: what calls it decides whether to wait or to go on."""
    nowhere = Redis(port=free_port(), socket_connect_timeout=1, retry=Retry(NoBackoff(), 0))
    store = RedisClaimStore(nowhere, prefix="p")
    steps: list[Callable[[], object]] = [
        lambda: claim(store, "a"),
        lambda: store.renew("k1", owner="a", lease=60),
        lambda: store.renew_all([("k1", "a")], lease=60),
        lambda: store.finish("k1", owner="a", result=None, lifetime=600),
        lambda: store.release("k1", owner="a"),
    ]
    for step in steps:
        with pytest.raises(StoreUnavailableError):
            step()
    nowhere.close()


def test_renewals_give_up_in_time_to_try_again(each_redis_url: str) -> None:
    """Two tries, each a connect and an answer, take less than half a lease."""
    client = for_renewals(Redis.from_url(each_redis_url, socket_timeout=500), lease=30)
    connection = client.connection_pool.make_connection()
    tries = connection.retry.get_retries() + 1
    assert tries == 2
    assert tries * (connection.socket_timeout + connection.socket_connect_timeout) <= 0.5 * 30
    assert client.ping()
    client.close()


# --- with the thread that renews ----------------------------------------------------------------------------------


class Lasting(RedisClaimStore):
    """What it renews lives for a minute: nobody who looks at a renewed claim can come too late."""

    def renew_all(self, claims: Sequence[tuple[str, str]], *, lease: float) -> list[bool]:
        assert lease == SHORT
        return super().renew_all(claims, lease=60)


def test_a_renewed_claim_outlives_many_leases(store: RedisClaimStore, each_redis_url: str, unique: str) -> None:
    """On a connection of its own. Taken away by force, it is found out, and nothing of the successor is touched."""
    lost: list[Held] = []
    renewals = Renewals(
        lambda: Lasting(for_renewals(Redis.from_url(each_redis_url), lease=SHORT), prefix=unique), lost=lost.append
    )
    sent = now()
    claim(store, "a", lease=SHORT)
    held = renewals.hold("k1", "a", SHORT, sent=sent)
    until(lambda: held.sent - sent > 2 * SHORT, within=60, what="the claim to be two leases old")
    assert isinstance(claim(store, "b"), Busy)
    assert held.check()

    def taken() -> bool:
        store.renew("k1", owner="a", lease=0)  # as if the thread had stood still; it may renew in this very moment
        return isinstance(claim(store, "b"), Won)

    until(taken, within=30, what="the claim to be taken over")
    until(lambda: lost, within=60, what="the loss to be found out")
    assert not held.check()
    assert isinstance(claim(store, "c"), Busy)
    assert store.finish("k1", owner="b", result=b"of b", lifetime=600)
    renewals.close()


@pytest.mark.slow
def test_a_connection_that_falls_silent_loses_no_claim(
    valkey: RedisServer, start_proxy: Callable[[int], TcpProxy], unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The renewal gives up, and is sent again on another connection, long before the lease ends."""
    direct = Redis.from_url(valkey.database())
    port = valkey.port
    assert port is not None
    proxy = start_proxy(port)
    url = f"redis://127.0.0.1:{proxy.port}/{direct.get_connection_kwargs()['db']}"
    renewals = Renewals(
        lambda: RedisClaimStore(for_renewals(Redis.from_url(url, socket_timeout=60), lease=20), prefix=unique)
    )
    sent = now()
    claim(RedisClaimStore(direct, prefix=unique), "a", lease=20)
    held = renewals.hold("k1", "a", 20, sent=sent)
    until(lambda: held.sent > sent, within=60, what="the first renewal")
    proxy.silence()
    until(lambda: "claims are renewed later" in caplog.text, within=60, what="a renewal to fail")
    assert held.certain()
    proxy.heal()
    last = held.sent
    until(lambda: held.sent > last, within=60, what="the next renewal")
    assert isinstance(claim(RedisClaimStore(direct, prefix=unique), "b"), Busy)
    renewals.close()
    direct.close()


# --- Lua and Python ------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["k1", "k2"])
OWNERS = st.sampled_from(["a", "b", "c", "d"])


@pytest.mark.parametrize("server", ["valkey", "redis7"])
def test_stores_agree(request: pytest.FixtureRequest, server: str) -> None:
    """Whatever happens in whatever order, both say the same; and a fence is given to one claim alone."""
    client = Redis.from_url(request.getfixturevalue(server).database())

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.stores: list[ClaimStore] = [InMemoryClaimStore(), RedisClaimStore(client, prefix=uuid.uuid4().hex)]
            self.fences: list[dict[str, tuple[int, str]]] = [{}, {}]

        @rule(
            key=KEYS,
            owner=OWNERS,
            task_id=st.sampled_from(["t1", "t2"]),
            fingerprint=st.sampled_from(["", "f1", "f2"]),
            lease=st.sampled_from([0.0, 60.0]),
        )
        def claim(self, key: str, owner: str, task_id: str, fingerprint: str, lease: float) -> None:
            told = []
            for store, fences in zip(self.stores, self.fences, strict=True):
                answer = store.claim(
                    key, owner=owner, task_id=task_id, fingerprint=fingerprint, lease=lease, lifetime=600
                )
                if isinstance(answer, Won):
                    assert answer.fence is not None
                    last, winner = fences.get(key, (0, ""))
                    repeated = answer.fence == last
                    assert (repeated and winner == owner) or answer.fence > last
                    fences[key] = (answer.fence, owner)
                    told.append(("won", repeated))
                elif isinstance(answer, Busy):
                    assert 30 < answer.left <= 60
                    told.append(("busy", answer.same))
                else:
                    told.append(answer)  # type: ignore[arg-type]
            assert told[0] == told[1]

        @rule(key=KEYS, owner=OWNERS, lease=st.sampled_from([0.0, 60.0]))
        def renew(self, key: str, owner: str, lease: float) -> None:
            self.agree(lambda store: store.renew(key, owner=owner, lease=lease))

        @rule(key=KEYS, owner=OWNERS, result=st.sampled_from([None, b"", b"1", b"2"]))
        def finish(self, key: str, owner: str, result: bytes | None) -> None:
            self.agree(lambda store: store.finish(key, owner=owner, result=result, lifetime=600))

        @rule(key=KEYS, owner=OWNERS)
        def release(self, key: str, owner: str) -> None:
            self.agree(lambda store: store.release(key, owner=owner))

        def agree(self, step: Callable[[ClaimStore], bool]) -> None:
            memory, redis = map(step, self.stores)
            assert memory is redis

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    client.close()
