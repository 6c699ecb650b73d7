"""What every store of checkpoints promises, on Valkey, on Redis and in memory: one suite."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from celery_hardened import StoreUnavailableError
from celery_hardened.checkpoint.contract import NOBODY, CheckpointStore, Message, Whose
from celery_hardened.checkpoint.memory import InMemoryCheckpointStore
from celery_hardened.checkpoint.store import RedisCheckpointStore
from tests.support.ports import free_port
from tests.support.until import until


@pytest.fixture(params=["memory", "valkey", "redis7"])
def store(request: pytest.FixtureRequest, unique: str) -> Iterator[CheckpointStore]:
    if request.param == "memory":
        yield InMemoryCheckpointStore()
        return
    client = Redis.from_url(request.getfixturevalue(request.param).database())
    yield RedisCheckpointStore(client, prefix=unique)
    client.close()


def opened(
    store: CheckpointStore, owner: str, *, work: str = "w", again: bool = True, of: Message = NOBODY
) -> bytes | None:
    return store.open(work, owner=owner, again=again, lifetime=60, of=of)


def save(
    store: CheckpointStore, owner: str, state: bytes, *, work: str = "w", anew: bool = False, of: Message = NOBODY
) -> Whose:
    return store.save(work, owner=owner, state=state, lifetime=60, anew=anew, of=of)


def finish(store: CheckpointStore, owner: str, *, work: str = "w") -> Whose:
    return store.finish(work, owner=owner, lifetime=60)


def saved(store: CheckpointStore, owner: str, state: bytes, *, work: str = "w") -> bool:
    return save(store, owner, state, work=work) == "ours"


def finished(store: CheckpointStore, owner: str, *, work: str = "w") -> bool:
    return finish(store, owner, work=work) == "ours"


# --- what is kept ------------------------------------------------------------------------------------------------


def test_new_work_has_no_state(store: CheckpointStore) -> None:
    assert opened(store, "a") is None


def test_the_next_run_gets_what_was_saved_last(store: CheckpointStore) -> None:
    """Byte for byte, whatever the bytes are."""
    state = bytes(range(256))
    opened(store, "a")
    assert saved(store, "a", b"before")
    assert saved(store, "a", state)
    assert opened(store, "b") == state


@pytest.mark.parametrize("again", [True, False])
def test_work_under_way_is_resumed_by_every_message(store: CheckpointStore, again: bool) -> None:
    """A redelivery, and as well a retry or a redrive, whose messages are new."""
    opened(store, "a")
    saved(store, "a", b"7")
    assert opened(store, "b", again=again) == b"7"


def test_pieces_of_work_know_nothing_of_each_other(store: CheckpointStore) -> None:
    opened(store, "a")
    saved(store, "a", b"7")
    assert opened(store, "a", work="other") is None
    assert saved(store, "a", b"8", work="other")
    assert opened(store, "b") == b"7"


# --- who may change it -------------------------------------------------------------------------------------------


def test_only_the_last_to_open_may_save(store: CheckpointStore) -> None:
    """A run that was taken for dead and wakes cannot move the position back."""
    opened(store, "zombie")
    saved(store, "zombie", b"3")
    opened(store, "heir")
    assert saved(store, "heir", b"9")
    assert save(store, "zombie", b"4") == "another's"
    assert save(store, "zombie", b"4", anew=True) == "another's"
    assert finish(store, "zombie") == "another's"
    assert opened(store, "next") == b"9"


def test_what_is_gone_is_told_from_what_is_anothers(store: CheckpointStore) -> None:
    """The store lost it, or it was finished and forgotten. It is not made anew for who does not say that it may be."""
    assert save(store, "a", b"1") == "gone"
    assert finish(store, "a") == "gone"
    assert opened(store, "b") is None


def test_a_record_that_is_gone_may_be_made_anew(store: CheckpointStore) -> None:
    """As if it had been there: it can be repeated, and has an owner, whom the next one to open it takes it from."""
    assert [save(store, "a", b"7", anew=True) for _ in range(2)] == ["ours", "ours"]
    assert save(store, "a", b"8") == "ours"
    assert save(store, "b", b"1", anew=True) == "another's"
    assert opened(store, "heir") == b"8"
    assert save(store, "a", b"9", anew=True) == "another's"
    assert finish(store, "heir") == "ours"


def test_a_record_made_anew_is_not_finished(store: CheckpointStore) -> None:
    """What a new message of the same work finds is work under way."""
    assert save(store, "a", b"7", anew=True) == "ours"
    assert opened(store, "b", again=False) == b"7"


def test_steps_may_be_repeated(store: CheckpointStore) -> None:
    """The client sends a step again when its answer was lost: it answers the same, and nothing else changes."""
    opened(store, "a")
    saved(store, "a", b"1")
    assert [opened(store, "b") for _ in range(2)] == [b"1", b"1"]
    assert [saved(store, "b", b"2") for _ in range(2)] == [True, True]
    assert [finished(store, "b") for _ in range(2)] == [True, True]
    assert opened(store, "c") == b"2"


def test_threads_have_one_owner(store: CheckpointStore) -> None:
    """Of many that open at once, exactly one may save afterwards."""
    owners = [uuid.uuid4().hex for _ in range(16)]
    threads = [threading.Thread(target=opened, args=(store, owner)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(saved(store, owner, owner.encode()) for owner in owners) == 1


# --- finished work -----------------------------------------------------------------------------------------------


def test_finished_work_is_found_by_its_own_message(store: CheckpointStore) -> None:
    """Its worker died between the success and the ack: the message comes back and need not do it all again."""
    opened(store, "a", again=False)
    saved(store, "a", b"40")
    finished(store, "a")
    assert opened(store, "b", again=True) == b"40"


def test_finished_work_does_not_bind_a_new_message(store: CheckpointStore) -> None:
    """Somebody sends the same work again, on purpose: it starts from the beginning."""
    opened(store, "a", again=False)
    saved(store, "a", b"40")
    finished(store, "a")
    assert opened(store, "b", again=False) is None
    assert not saved(store, "a", b"41")
    assert saved(store, "b", b"1")
    assert opened(store, "c", again=False) == b"1"


def test_finished_work_is_fenced_too(store: CheckpointStore) -> None:
    """A zombie that wakes after all is done is told so."""
    opened(store, "zombie")
    opened(store, "heir")
    saved(store, "heir", b"40")
    finished(store, "heir")
    assert not saved(store, "zombie", b"4")
    assert opened(store, "next", again=True) == b"40"


# --- whose work it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize(
    ("asker", "found"),
    [
        (Message("t1", "e1"), b"7"),
        (Message("t2", "e1"), b"7"),
        (Message("t1", "e2"), b"7"),
        (Message("t1", ""), b"7"),
        (Message("t2", "e2"), None),
        (Message("t2", ""), None),
    ],
)
def test_who_goes_on(store: CheckpointStore, asker: Message, found: bytes | None, anew: bool, again: bool) -> None:
    """The same task whatever its arguments are, and another one of the same edition. Any other begins anew, as owner;
    and so it is with a record that was lost and written anew."""
    first = Message("t1", "e1")
    if not anew:
        opened(store, "a", of=first)
    assert save(store, "a", b"7", anew=anew, of=first) == "ours"
    assert opened(store, "b", again=again, of=asker) == found
    assert save(store, "a", b"8", of=first) == "another's"
    assert save(store, "b", b"1", of=asker) == "ours"
    assert opened(store, "c", of=asker) == b"1"


def test_it_is_of_who_opened_it_last(store: CheckpointStore) -> None:
    """Who had it before is another one by now."""
    for owner, message in (("a", Message("t1", "e1")), ("b", Message("t2", "e1")), ("c", Message("t2", "e2"))):
        opened(store, owner, of=message)
        save(store, owner, owner.encode(), of=message)
    assert opened(store, "d", of=Message("t1", "e1")) is None


# --- all together ------------------------------------------------------------------------------------------------


steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "again", "save", "anew", "finish"]),
        st.sampled_from(["w1", "w2"]),
        st.sampled_from(["a", "b", "c"]),
        st.binary(max_size=3),
        st.builds(Message, st.sampled_from(["t1", "t2"]), st.sampled_from(["", "e1", "e2"])),
    ),
    max_size=14,
)


@pytest.mark.parametrize("server", ["valkey", "redis7"])
def test_stores_agree(request: pytest.FixtureRequest, server: str) -> None:
    """Whatever happens in whatever order, Lua and Python say the same."""
    client = Redis.from_url(request.getfixturevalue(server).database())

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps)
    def agree(steps: list[tuple[str, str, str, bytes, Message]]) -> None:
        stores: list[CheckpointStore] = [
            InMemoryCheckpointStore(),
            RedisCheckpointStore(client, prefix=uuid.uuid4().hex),
        ]
        for step, work, owner, state, message in steps:
            answers: list[object] = []
            for one in stores:
                if step in ("save", "anew"):
                    answers.append(save(one, owner, state, work=work, anew=step == "anew", of=message))
                elif step == "finish":
                    answers.append(finish(one, owner, work=work))
                else:
                    answers.append(opened(one, owner, work=work, again=step == "again", of=message))
            assert answers[0] == answers[1], step

    agree()
    client.close()


def test_memory_forgets_in_time() -> None:
    """Each step begins the lifetime anew; a record whose lifetime is over is none."""
    now = 0.0
    store = InMemoryCheckpointStore(clock=lambda: now)
    store.open("w", owner="a", again=True, lifetime=10)
    now = 9.0
    assert store.save("w", owner="a", state=b"1", lifetime=10) == "ours"
    now = 18.0
    assert store.open("w", owner="b", again=True, lifetime=10) == b"1"
    assert store.finish("w", owner="b", lifetime=2) == "ours"
    now = 20.0
    assert store.save("w", owner="b", state=b"2", lifetime=10) == "gone"
    assert store.open("w", owner="c", again=True, lifetime=10) is None


# --- Redis only --------------------------------------------------------------------------------------------------


def test_every_key_lives_as_long_as_it_is_told(each_redis_url: str, unique: str) -> None:
    """After every single step no key lives for ever; finished work is kept for the shorter time it is given."""
    client = Redis.from_url(each_redis_url)
    store = RedisCheckpointStore(client, prefix=unique)
    key = f"{unique}:checkpoint:{{w}}"
    steps: list[tuple[Callable[[], object], int]] = [
        (lambda: store.open("w", owner="a", again=False, lifetime=1000), 1_000_000),
        (lambda: store.save("w", owner="a", state=b"1", lifetime=500), 500_000),
        (lambda: store.finish("w", owner="a", lifetime=100), 100_000),
        (lambda: client.delete(key) and store.save("w", owner="a", state=b"1", lifetime=500, anew=True), 500_000),
    ]
    for step, most in steps:
        step()
        assert [one.decode() for one in client.scan_iter(f"{unique}:*")] == [key]
        assert most / 2 < client.pttl(key) <= most
    store.finish("w", owner="a", lifetime=0.05)
    until(lambda: not client.exists(key), within=10, what="the record to be gone")
    client.close()


def test_refused_steps_leave_no_key(each_redis_url: str, unique: str) -> None:
    client = Redis.from_url(each_redis_url)
    store = RedisCheckpointStore(client, prefix=unique)
    assert store.save("w", owner="a", state=b"1", lifetime=50) == "gone"
    assert store.finish("w", owner="a", lifetime=50) == "gone"
    assert list(client.scan_iter(f"{unique}:*")) == []
    client.close()


def test_a_record_of_an_older_release_goes_on(each_redis_url: str, unique: str) -> None:
    """It does not say whose it is."""
    client = Redis.from_url(each_redis_url)
    store = RedisCheckpointStore(client, prefix=unique)
    client.hset(f"{unique}:checkpoint:{{w}}", mapping={"owner": "a", "state": b"7"})
    assert opened(store, "b", again=False, of=Message("t2", "e2")) == b"7"
    assert opened(store, "c", again=False, of=Message("t3", "e3")) is None
    client.close()


def test_a_store_that_does_not_answer_says_so() -> None:
    """Every method, as StoreUnavailableError: what calls it decides whether to wait or to go on."""
    client = Redis(port=free_port(), socket_timeout=1, socket_connect_timeout=1, retry=None)
    store = RedisCheckpointStore(client, prefix="p")
    for call in (
        lambda: store.open("w", owner="a", again=True, lifetime=1),
        lambda: store.save("w", owner="a", state=b"", lifetime=1),
        lambda: store.finish("w", owner="a", lifetime=1),
    ):
        with pytest.raises(StoreUnavailableError, match="the store did not answer"):
            call()
    client.close()
