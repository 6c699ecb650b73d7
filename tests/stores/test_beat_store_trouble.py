"""What the one step of a beat does when a queue is none, Redis is full, or the user may not do all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import which

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_hardened import StoreUnavailableError
from celery_hardened.beat.names import Keys
from celery_hardened.beat.policy import Overlap
from celery_hardened.beat.store import BeatStore, Outgoing, Taken
from tests.stores.beat import HISTORY, OWNER, Box
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, Keys(unique))
    client.close()


@pytest.fixture(params=["valkey", "redis7"])
def own_box(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Iterator[Box]:
    """On a server of this test's own, whose settings it may change."""
    binary = which("redis-server") if request.param == "redis7" else None
    request.getfixturevalue(request.param)  # missing servers are told of there
    server = RedisServer(tmp_path / "server", binary=Path(binary) if binary else None)
    server.start()
    client = Redis.from_url(server.database())
    yield Box(client, Keys(unique))
    client.close()
    server.stop()


@pytest.mark.parametrize("old", ["", "r1"])
@pytest.mark.parametrize("overlap", ["allow", "skip", "cancel_other", "terminate_other"])
def test_a_queue_that_is_no_list_fails_its_own_step(box: Box, overlap: Overlap, old: str) -> None:
    """Its record has not moved, the window is whose it was, nobody is to be revoked, and the others were fired."""
    if old:
        box.take(box.step("bad", new=old, messages=()))
    if overlap.endswith("other"):
        box.windows.enter("schedule:bad", task_id="runs", ttl=60, window=600)
    box.client.set("foreign", "x")
    before = box.everything()
    bad = box.step("bad", old, "r2", overlap=overlap, messages=(box.message("lost", "foreign"),))
    first, failed, last = box.take(box.step("a", task_id="a"), bad, box.step("b", task_id="b"))
    assert (first, last) == (Taken("taken"), Taken("taken"))
    assert (failed.outcome, "WRONGTYPE" in failed.trouble) == ("failed", True)
    assert box.messages() == ["a", "b"]
    assert box.store.record("bad") == (old or None)
    assert (box.holder("bad"), box.store.revokes(OWNER, 10)) == ("runs" if overlap.endswith("other") else None, [])
    after = box.everything()
    for key in before.keys() - {box.keys.records.encode()}:
        assert after[key] == before[key], key
    box.client.delete("foreign")
    assert box.take(bad)[0].outcome == "taken"
    assert box.messages("foreign") == ["lost"]


def test_messages_of_a_step_go_out_together_or_not_at_all(box: Box) -> None:
    """Those that went before the one that was refused are taken back; what lay in the queues is as it was."""
    box.client.lpush(box.queue, "earlier")
    box.client.set("foreign", "x")
    lists = (box.message("a"), box.message("b", "new"), box.message("c"), box.message("d", "foreign"))
    before = box.everything()
    for several in (lists, (Outgoing("PUBLISH", "topic", b"cannot be taken back"), *lists)):
        [failed] = box.take(box.step(messages=several))
        assert failed.outcome == "failed"
        assert box.everything() == before


def test_nobody_takes_a_message_that_is_taken_back(box: Box) -> None:
    """A consumer that waits at the queue is not served by it."""
    waiting = Redis(connection_pool=box.client.connection_pool)
    connection = waiting.connection_pool.get_connection()
    connection.send_command("BRPOP", box.queue, 30)  # type: ignore[no-untyped-call]
    box.client.set("foreign", "x")
    for _ in range(3):
        [failed] = box.take(box.step(messages=(box.message("back"), box.message("d", "foreign"))))
        assert failed.outcome == "failed"
    box.take(box.step(messages=(box.message("there"),)))
    assert connection.read_response() == [box.queue.encode(), b"there"]
    waiting.connection_pool.release(connection)


def test_a_window_that_is_none_fails_its_own_step(box: Box) -> None:
    box.client.set(box.keys.window("s"), "x")
    before = box.everything()
    for overlap in ("skip", "buffer_one", "cancel_other", "terminate_other"):
        [failed] = box.take(box.step(overlap=overlap))
        assert (failed.outcome, "WRONGTYPE" in failed.trouble) == ("failed", True)
    assert box.everything() == before
    assert box.take(box.step("x", overlap="skip")) == [Taken("taken")]


def test_a_history_that_is_none_is_begun_anew(box: Box) -> None:
    """And so is the list of tasks to be revoked: nobody else writes there, and no run is held up by them."""
    box.client.set(box.keys.history("s"), "x")
    box.client.set(box.keys.revoke, "x")
    box.windows.enter("schedule:s", task_id="runs", ttl=60)
    assert box.take(box.step(overlap="cancel_other")) == [Taken("taken", holder="runs")]
    assert box.said() == ["r1"]
    assert [one.id for one in box.store.revokes(OWNER, 10)] == ["runs"]


@pytest.mark.parametrize("key", ["records", "paused", "leader"])
def test_a_key_of_all_schedules_that_is_none_stops_everything(box: Box, key: str) -> None:
    """Before anything is done: no message is sent whose record does not move."""
    box.client.set(getattr(box.keys, key), "x")
    before = box.everything()
    with pytest.raises(StoreUnavailableError, match="WRONGTYPE"):
        box.take(box.step(checks_pause=False), box.step("x"))
    assert box.everything() == before


def test_a_full_redis_refuses_all_steps_and_nothing_is_half_done(own_box: Box) -> None:
    """At ``maxmemory``, under each policy, in the middle of a schedule's life and at its first step."""
    box = own_box
    box.take(box.step(), box.step("y", overlap="skip", task_id="runs"))
    box.windows.enter("schedule:z", task_id="runs", ttl=60)
    box.client.pexpire(box.keys.records, 1000_000)  # the next call would lengthen it, were it to come that far
    full = [
        box.step(old="r1", new="r2"),
        box.step("new"),
        box.step("y", old="r1", new="r2", overlap="skip", task_id="t2"),
        box.step("z", overlap="cancel_other"),
    ]
    before = box.everything()
    box.client.config_set("maxmemory-policy", "noeviction")
    box.client.config_set("maxmemory", 1)
    for steps in (full, *([one] for one in full)):
        with pytest.raises(StoreUnavailableError, match="maxmemory"):
            box.take(*steps)
    with pytest.raises(StoreUnavailableError, match="maxmemory"):
        box.store.trigger(box.step("z", overlap="terminate_other"))
    box.client.config_set("maxmemory", 0)
    assert box.everything() == before
    assert 0 < box.client.pttl(box.keys.records) <= 1000_000
    answer = box.take(*full)
    assert [one.outcome for one in answer] == ["taken", "taken", "overlapped", "taken"]


def test_a_full_redis_still_answers_a_repeat(own_box: Box) -> None:
    """It filled up while the answer was under way."""
    own_box.take(own_box.step())
    own_box.client.config_set("maxmemory", 1)
    assert own_box.take(own_box.step()) == [Taken("taken")]
    own_box.client.config_set("maxmemory", 0)
    assert own_box.messages() == ["t1"]


def test_a_redis_that_may_not_write_refuses_all_steps(own_box: Box) -> None:
    """A replica, say, and one that has too few of them: as if it were away."""
    before = own_box.everything()
    own_box.client.config_set("min-replicas-to-write", 1)
    with pytest.raises(StoreUnavailableError, match="NOREPLICAS"):
        own_box.take(own_box.step())
    own_box.client.config_set("min-replicas-to-write", 0)
    assert own_box.everything() == before


def test_a_queue_that_the_user_may_not_touch_fails_its_own_step(own_box: Box) -> None:
    """The same of a channel and of a window; what was refused is told, and the rest is fired."""
    box = own_box
    admin, prefix = box.client, box.keys.prefix
    rights = ["+@all", f"~{prefix}*", "%R~readable:*", f"&{prefix}*"]
    admin.execute_command("ACL", "SETUSER", "beat", "on", ">secret", "resetchannels", *rights)  # type: ignore[no-untyped-call]
    port = admin.connection_pool.connection_kwargs["port"]
    user = Redis(port=port, db=admin.connection_pool.connection_kwargs["db"], username="beat", password="secret")
    store = BeatStore(user, box.keys, history=HISTORY)
    foreign = replace(box.step("c", overlap="skip"), window="foreign:window")
    readable = replace(foreign, name="f", window="readable:window")
    answer = store.take(
        OWNER,
        [
            box.step("a", messages=(box.message("x", "foreign"),)),
            box.step("b", messages=(box.message("y"), Outgoing("PUBLISH", "foreign", b"y"))),
            foreign,
            readable,
            box.step(
                "d", messages=(Outgoing("PUBLISH", f"{prefix}:topic", b"z"), Outgoing("PUBLISH", "foreign", b"z"))
            ),
            box.step("e", task_id="fine"),
        ],
    )
    assert [one.outcome for one in answer] == ["failed", "failed", "failed", "failed", "taken", "taken"]
    assert all(one.trouble for one in answer[:5]), "of the fifth, one message was published and cannot be taken back"
    assert not answer[5].trouble
    assert set(box.store.records()) == {"d", "e"}
    assert box.messages() == ["fine"]
    assert not admin.exists("foreign", "foreign:window", "readable:window")
    user.close()


def test_a_store_that_does_not_answer_says_so() -> None:
    """Every method, as StoreUnavailableError."""
    client = Redis(port=free_port(), socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0))
    store = BeatStore(client, Keys("p"), history=HISTORY)
    step = Box.__new__(Box)
    step.client, step.keys = client, Keys("p")
    for call in (
        lambda: store.take(OWNER, [step.step()]),
        lambda: store.trigger(step.step()),
        lambda: store.records(),
        lambda: store.record("s"),
        lambda: store.history("s", 5),
        lambda: store.pause("s", by="me", why="test", until=None),
        lambda: store.resume("s"),
        lambda: store.paused(),
        lambda: store.stamp(),
        lambda: store.set_problems(OWNER, {"s": "x"}),
        lambda: store.problems(),
        lambda: store.revokes(OWNER, 5),
        lambda: store.revoked(OWNER, []),
        lambda: store.forget(OWNER, ["s"]),
        lambda: store.adopt({"s": "x"}),
    ):
        with pytest.raises(StoreUnavailableError, match="the store did not answer") as raised:
            call()
        assert isinstance(raised.value.__cause__, RedisError)
    client.close()
