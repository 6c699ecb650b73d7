"""What every store of deaths promises, on Valkey, on Redis and in memory: one suite."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from celery_hardened import StoreUnavailableError
from celery_hardened.poison.contract import DeathStore, Start
from celery_hardened.poison.memory import InMemoryDeathStore
from celery_hardened.poison.policy import Record, judge
from celery_hardened.poison.store import RedisDeathStore
from tests.support.ports import free_port
from tests.support.until import until

Begin: TypeAlias = Callable[..., Start]


@pytest.fixture(params=["memory", "valkey", "redis7"])
def store(request: pytest.FixtureRequest, unique: str) -> Iterator[DeathStore]:
    if request.param == "memory":
        yield InMemoryDeathStore()
        return
    client = Redis.from_url(request.getfixturevalue(request.param).database())
    yield RedisDeathStore(client, prefix=unique, memory=3600)
    client.close()


@pytest.fixture
def delivery() -> Begin:
    """A delivery of one piece of work, each with a token of its own."""

    def make(work: str = "w1", task_id: str = "t1", carried: int = 0) -> Start:
        return Start(work, task_id, uuid.uuid4().hex, carried)

    return make


# --- what counts as a death ---------------------------------------------------------------------------------


def test_nothing_is_known_of_new_work(store: DeathStore) -> None:
    assert store.peek("w1") == Record()


def test_an_unexplained_redelivery_is_presumed_one_death(store: DeathStore, delivery: Begin) -> None:
    """Its earlier start was a first delivery, which nobody wrote down. It is presumed once, whatever comes after."""
    assert store.open_start(delivery(), redelivered=True, alone=False) == Record(presumed=1)
    assert store.peek("w1") == Record(presumed=1, unclosed=1)
    assert store.open_start(delivery(), redelivered=True, alone=False) == Record(presumed=1, unclosed=1)


def test_starts_that_never_close_count(store: DeathStore, delivery: Begin) -> None:
    """Whole workers that died: each start that was written down and never ended."""
    for deaths in range(4):
        assert store.open_start(delivery(), redelivered=True, alone=False).unclosed == deaths


def test_a_start_that_ended_does_not_count(store: DeathStore, delivery: Begin) -> None:
    """Retried or given back: closed, but what was known before stays known."""
    first = delivery()
    store.open_start(first, redelivered=True, alone=False)
    store.close_start(first, finished=False)
    assert store.peek("w1") == Record(presumed=1)
    assert store.open_start(delivery(), redelivered=False, alone=False) == Record(presumed=1)


def test_finished_work_is_forgotten(store: DeathStore, delivery: Begin) -> None:
    """A bystander clears itself of everything, however often its workers died."""
    starts = [delivery() for _ in range(5)]
    for start in starts:
        store.open_start(start, redelivered=True, alone=False)
    store.close_start(starts[-1], finished=True)
    assert store.peek("w1") == Record()


def test_a_death_the_parent_saw_is_certain(store: DeathStore, delivery: Begin) -> None:
    """With or without a recorded start, and told twice it is one: an unclosed start becomes a certain death."""
    first = delivery()
    assert store.record_death(first) == Record(certain=1)
    second = delivery()
    store.open_start(second, redelivered=False, alone=False)
    assert store.record_death(second) == Record(certain=2)
    assert store.record_death(second) == Record(certain=2)
    assert store.peek("w1") == Record(certain=2)


def test_a_repeated_start_is_one(store: DeathStore, delivery: Begin) -> None:
    """The reply to the first call may be lost on the way."""
    start = delivery()
    assert store.open_start(start, redelivered=True, alone=False) == Record(presumed=1)
    assert store.open_start(start, redelivered=True, alone=False) == Record(presumed=1)
    assert store.peek("w1").unclosed == 1


def test_deaths_carried_by_the_message(store: DeathStore, delivery: Begin) -> None:
    """They stand in for a record that was lost, and count once; a redelivery then is no further presumption."""
    first = delivery(carried=2)
    assert store.open_start(first, redelivered=True, alone=False) == Record(certain=2)
    assert store.record_death(first) == Record(certain=3)
    assert store.open_start(delivery(carried=3), redelivered=False, alone=False) == Record(certain=3)
    assert store.record_death(delivery("other", carried=1)) == Record(certain=2)


def test_works_do_not_mix(store: DeathStore, delivery: Begin) -> None:
    store.record_death(delivery("w1"))
    store.open_start(delivery("w2"), redelivered=True, alone=False)
    assert (store.peek("w1"), store.peek("w2")) == (Record(certain=1), Record(presumed=1, unclosed=1))


# --- what does not ------------------------------------------------------------------------------------------


def test_a_graceful_return_explains_the_redelivery(store: DeathStore, delivery: Begin) -> None:
    """Of a message that was prefetched, or a first delivery that was running: a deploy is no death."""
    store.record_return(delivery())
    assert store.open_start(delivery(), redelivered=True, alone=False) == Record()


def test_a_return_explains_one_redelivery(store: DeathStore, delivery: Begin) -> None:
    """The next one has to be explained again."""
    store.record_return(delivery())
    first = delivery()
    store.open_start(first, redelivered=True, alone=False)
    assert store.open_start(delivery(), redelivered=True, alone=False) == Record(unclosed=1)


def test_a_return_does_not_explain_twice(store: DeathStore, delivery: Begin) -> None:
    """Also when the start that it explained has ended, and nothing else is known of the work."""
    store.record_return(delivery())
    first = delivery()
    store.open_start(first, redelivered=True, alone=False)
    store.close_start(first, finished=False)
    assert store.open_start(delivery(), redelivered=True, alone=False) == Record(presumed=1)


def test_a_return_closes_a_recorded_start(store: DeathStore, delivery: Begin) -> None:
    """Ten deploys in the middle of one long task are not one death."""
    store.record_death(delivery())
    for _ in range(10):
        start = delivery()
        assert store.open_start(start, redelivered=True, alone=False) == Record(certain=1)
        store.record_return(start)
    assert store.peek("w1") == Record(certain=1)


def test_a_return_explains_its_own_message_only(store: DeathStore, delivery: Begin) -> None:
    """Two messages of one work, by its idempotency key: the other one's death is not explained away."""
    store.record_return(delivery(task_id="t1"))
    assert store.open_start(delivery(task_id="t2"), redelivered=True, alone=False) == Record(presumed=1)


# --- progress -----------------------------------------------------------------------------------------------


def test_progress_forgets_deaths_of_every_kind(store: DeathStore, delivery: Begin) -> None:
    """Seen by the parent, presumed, carried and unclosed: what killed those starts was not what is worked on now."""
    store.record_death(delivery(carried=1))
    store.open_start(delivery(), redelivered=True, alone=False)
    start = delivery()
    assert store.open_start(start, redelivered=True, alone=False) == Record(certain=2, unclosed=1)
    store.progress(start)
    assert store.peek("w1") == Record(unclosed=1)


def test_a_start_that_made_progress_stays_open(store: DeathStore, delivery: Begin) -> None:
    """If it dies now, that is its first death, by whichever way it shows; what its message carries counts no more."""
    for dies in (store.record_death, lambda start: None):
        start = delivery(carried=2)
        store.open_start(start, redelivered=True, alone=False)
        store.progress(start)
        store.progress(start)
        dies(start)
        assert store.open_start(delivery(carried=2), redelivered=True, alone=False).deaths == 1


def test_a_job_that_comes_further_each_time_is_never_poison(store: DeathStore, delivery: Begin) -> None:
    """Twenty deaths, of children and of whole workers in turn."""
    for death in range(20):
        start = delivery()
        record = store.open_start(start, redelivered=True, alone=False)
        assert judge(record, limit=3) == "run", death
        store.progress(start)
        if death % 2:
            store.record_death(start)


def test_progress_clears_of_dying_alone(store: DeathStore, delivery: Begin) -> None:
    """It is no culprit of what came before it, and what kills it now is a first death."""
    for _ in range(3):
        store.open_start(delivery(), redelivered=True, alone=False)
    alone = delivery()
    store.open_start(alone, redelivered=True, alone=True)
    store.progress(alone)
    assert store.peek("w1") == Record(unclosed=1)
    assert judge(store.record_death(alone), limit=3) == "run"


@pytest.mark.parametrize("end", ["retried", "given back"])
def test_what_progress_forgot_is_not_carried_back(store: DeathStore, delivery: Begin, end: str) -> None:
    """Its message comes again with the old count on it; a death from then on is the first."""
    start = delivery(carried=2)
    store.open_start(start, redelivered=True, alone=False)
    store.progress(start)
    if end == "retried":
        store.close_start(start, finished=False)
    else:
        store.record_return(start)
    again = delivery(carried=2)
    assert store.open_start(again, redelivered=end == "given back", alone=False) == Record()
    assert store.record_death(again) == Record(certain=1)


def test_an_unexplained_redelivery_after_progress_is_presumed_a_death(store: DeathStore, delivery: Begin) -> None:
    """Its next message started as a first delivery, which nobody wrote down."""
    start = delivery()
    store.open_start(start, redelivered=True, alone=False)
    store.progress(start)
    store.close_start(start, finished=False)
    assert store.open_start(delivery(task_id="t2"), redelivered=True, alone=False) == Record(presumed=1)


def test_progress_of_a_start_that_was_not_written_down(store: DeathStore, delivery: Begin) -> None:
    """Deaths are forgotten as well, and none is invented."""
    store.record_death(delivery())
    store.progress(delivery())
    assert store.peek("w1") == Record()


# --- alone --------------------------------------------------------------------------------------------------


def test_dying_alone_convicts(store: DeathStore, delivery: Begin) -> None:
    """The start that had the worker to itself and never closed, seen from the next delivery."""
    for _ in range(3):
        store.open_start(delivery(), redelivered=True, alone=False)
    alone = delivery()
    record = store.open_start(alone, redelivered=True, alone=True)
    assert (record.alone, judge(record, limit=3)) == (False, "alone")
    assert store.peek("w1").alone
    record = store.open_start(delivery(), redelivered=True, alone=False)
    assert (record.alone, judge(record, limit=3)) == (True, "poison")


def test_dying_alone_in_the_parents_sight_convicts(store: DeathStore, delivery: Begin) -> None:
    store.open_start(delivery(), redelivered=True, alone=False)
    alone = delivery()
    store.open_start(alone, redelivered=True, alone=True)
    assert judge(store.record_death(alone), limit=9) == "poison"


@pytest.mark.parametrize("end", ["closed", "returned"])
def test_ending_alone_clears_of_that(store: DeathStore, delivery: Begin, end: str) -> None:
    """Retried, or given back by a deploy, while it was alone: no conviction, though the old deaths stay."""
    store.open_start(delivery(), redelivered=True, alone=False)
    alone = delivery()
    store.open_start(alone, redelivered=True, alone=True)
    if end == "closed":
        store.close_start(alone, finished=False)
    else:
        store.record_return(alone)
    assert store.peek("w1") == Record(presumed=1, unclosed=1)


def test_another_starts_end_does_not_clear_the_one_alone(store: DeathStore, delivery: Begin) -> None:
    """A late message of an older delivery must not acquit the culprit."""
    older, alone = delivery(), delivery()
    store.open_start(older, redelivered=True, alone=False)
    store.open_start(alone, redelivered=True, alone=True)
    store.close_start(older, finished=False)
    store.record_return(older)
    assert store.peek("w1").alone


# --- all together ---------------------------------------------------------------------------------------------


def test_threads_count_right(store: DeathStore, delivery: Begin) -> None:
    """Workers tell of deaths of the same work at the same time."""
    starts = [delivery() for _ in range(12)]

    def live(start: Start) -> None:
        store.open_start(start, redelivered=False, alone=False)
        store.record_death(start)

    threads = [threading.Thread(target=live, args=(start,)) for start in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.peek("w1") == Record(certain=12)


calls = st.lists(
    st.tuples(
        st.sampled_from(["open", "alone", "close", "finish", "progress", "death", "return"]),
        st.sampled_from(["w1", "w2"]),
        st.integers(0, 3),
        st.booleans(),
        st.integers(0, 2),
    ),
    max_size=14,
)


@pytest.mark.parametrize("server", ["valkey", "redis7"])
def test_stores_agree(request: pytest.FixtureRequest, server: str) -> None:
    """Whatever happens in whatever order, Lua and Python say the same."""
    client = Redis.from_url(request.getfixturevalue(server).database())

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(calls)
    def agree(calls: list[tuple[str, str, int, bool, int]]) -> None:
        stores: list[DeathStore] = [
            InMemoryDeathStore(),
            RedisDeathStore(client, prefix=uuid.uuid4().hex, memory=3600),
        ]
        for call, work, number, redelivered, carried in calls:
            start = Start(work, f"task {number % 2}", f"token {number}", carried)
            answers = [told(one, call, start, redelivered) for one in stores]
            assert answers[0] == answers[1], call
            assert stores[0].peek(work) == stores[1].peek(work), call

    agree()
    client.close()


def told(store: DeathStore, call: str, start: Start, redelivered: bool) -> Record | None:
    if call in ("open", "alone"):
        return store.open_start(start, redelivered=redelivered, alone=call == "alone")
    if call == "death":
        return store.record_death(start)
    if call == "return":
        store.record_return(start)
    elif call == "progress":
        store.progress(start)
    else:
        store.close_start(start, finished=call == "finish")
    return None


# --- Redis only ------------------------------------------------------------------------------------------------


def test_every_key_lives_as_long_as_deaths_are_remembered(each_redis_url: str, unique: str, delivery: Begin) -> None:
    """After every single step no key lives for ever; the memory begins anew with each start and death."""
    client = Redis.from_url(each_redis_url)
    store = RedisDeathStore(client, prefix=unique, memory=100)
    start = delivery()
    steps: list[tuple[Callable[[], Any], bool]] = [
        (lambda: store.record_return(start), False),
        (lambda: store.open_start(start, redelivered=True, alone=True), True),
        (lambda: store.progress(start), True),
        (lambda: store.record_death(start), True),
        (lambda: store.close_start(start, finished=False), False),
        (lambda: store.record_return(start), False),
        (lambda: store.record_death(delivery("w2", carried=1)), False),
    ]
    for step, renews in steps:
        step()
        keys = list(client.scan_iter(f"{unique}:*"))
        assert keys
        assert all(0 < client.pttl(key) <= 100_000 for key in keys)
        if renews:
            assert client.pttl(f"{unique}:death:{{w1}}") > 50_000
        for key in keys:
            client.pexpire(key, 20_000)
    client.close()


def test_deaths_are_forgotten(each_redis_url: str, unique: str, delivery: Begin) -> None:
    """After hardened_death_memory nothing is left."""
    client = Redis.from_url(each_redis_url)
    store = RedisDeathStore(client, prefix=unique, memory=0.2)
    store.record_death(delivery())
    store.record_return(delivery())
    until(lambda: not list(client.scan_iter(f"{unique}:*")), within=10, what="all keys to be gone")
    assert store.peek("w1") == Record()
    client.close()


def test_keys_of_one_work_share_a_cluster_slot(each_redis_url: str, unique: str, delivery: Begin) -> None:
    client = Redis.from_url(each_redis_url)
    store = RedisDeathStore(client, prefix=unique, memory=100)
    store.record_return(delivery("w7"))
    store.open_start(delivery("w7", task_id="t2"), redelivered=True, alone=False)
    keys = sorted(key.decode() for key in client.scan_iter(f"{unique}:*"))
    assert keys == [f"{unique}:death:{{w7}}", f"{unique}:death:{{w7}}:returned:t1"]
    client.close()


def test_a_store_that_does_not_answer_says_so(delivery: Begin) -> None:
    """Every method, as StoreUnavailableError: what calls it decides whether to wait or to go on."""
    client = Redis(port=free_port(), socket_timeout=1, socket_connect_timeout=1, retry=None)
    store = RedisDeathStore(client, prefix="p", memory=100)
    start = delivery()
    for call in (
        lambda: store.peek("w1"),
        lambda: store.open_start(start, redelivered=True, alone=False),
        lambda: store.close_start(start, finished=True),
        lambda: store.progress(start),
        lambda: store.record_death(start),
        lambda: store.record_return(start),
    ):
        with pytest.raises(StoreUnavailableError, match="the store did not answer"):
            call()
    client.close()
