"""A beat's steps, turn by turn, where the broker is not the Redis of the records: claim, publish, confirm."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from celery_hardened.beat.missed_run import Fire
from celery_hardened.beat.progress import claimed
from celery_hardened.beat.steps import StepToTake
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.marks import HEADER
from celery_hardened.pipeline.windows import windows
from tests.support.led_beat import MakeLedBeats as Make
from tests.support.led_beat import declining

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]


@pytest.fixture
def elsewhere(led: Make, records_url: str) -> Make:
    """Beats whose records are in another database than the queues: claim, publish, confirm."""
    return lambda schedules, **more: led(schedules, records_url=records_url, **more)


def test_a_claim_takes_the_window_and_what_was_not_sent_frees_it(
    elsewhere: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that refuses connections has got nothing: the slot is decided again within a second, however often
    that has failed."""
    beats = elsewhere({name: {"overlap": "skip"} for name in ("a", "b")})
    seen = []

    def refused(*_: Any, **__: Any) -> bool:
        seen.append(beats.holder("a"))
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    publish = beats.beat.firing._messages.publish  # type: ignore[attr-defined]
    monkeypatch.setattr(beats.beat.firing, "_messages", SimpleNamespace(publish=refused, connects=lambda: False))
    for at in range(1, 8):
        monkeypatch.setattr(beats.beat.firing, "_not_before", 0.0)
        beats.turn(at)
        assert (beats.holder("a"), beats.holder("b")) == (None, None)
        assert beats.record("a").pending is None
    assert len(seen) >= 4
    assert beats.id_of("a", 1) in seen
    monkeypatch.setattr(beats.beat.firing, "_messages", SimpleNamespace(publish=publish))
    monkeypatch.setattr(beats.beat.firing, "_not_before", 0.0)
    beats.turn(8)
    assert (beats.fired("a"), beats.fired("b")) == ([1], [1]), "at once, not after a minute"
    assert beats.holder("a") == beats.id_of("a", 1)


def test_a_publish_of_which_nothing_is_known_holds_the_window(elsewhere: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is published again under its id, by the next leader too, and has its window while it is on its way."""
    beats = elsewhere({"a": {"overlap": "skip"}})

    def unknown(*_: Any, **__: Any) -> bool:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    monkeypatch.setattr(beats.beat.firing, "_messages", SimpleNamespace(publish=unknown, connects=lambda: False))
    beats.turn(1)
    beats.turn(2)
    assert beats.record("a").pending == beats.clock.at - 1
    assert beats.holder("a") == beats.id_of("a", 1)
    beats.ends("a")  # its message had arrived, and is done; or the beat died as it freed the window
    beats.next_leader()
    assert beats.fired("a") == [1]
    assert beats.holder("a") == beats.id_of("a", 1)
    assert beats.record("a").passed == {"overlapped": 1}


@pytest.fixture
def revoked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks that the workers are told to end."""
    told: list[str] = []
    monkeypatch.setattr("celery.app.control.Control.revoke", lambda _self, ids, **_: told.extend(ids))
    return told


@pytest.mark.parametrize("way", ["the broker refuses", "no JSON", "it declines"])
def test_a_publish_that_certainly_fails_ends_no_run(
    elsewhere: Make, monkeypatch: pytest.MonkeyPatch, revoked: list[str], way: str
) -> None:
    """The run before it goes on and keeps its window, however often it is tried. It ends with the first message."""
    args = (object(),) if way == "no JSON" else ()
    task = "shop.declined" if way == "it declines" else "shop.work"
    one = {"overlap": "terminate_other", "args": args, "task": task}
    beats = elsewhere({"a": one, "b": {}}, tasks=declining)
    enter = windows(beats.hardening).enter
    assert enter("schedule:a", task_id="before", ttl=600) == "before"
    seen = []

    def refused(*_: Any, **__: Any) -> bool:
        seen.append(beats.holder("a"))
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    if way == "the broker refuses":
        monkeypatch.setattr(beats.beat.firing, "_messages", SimpleNamespace(publish=refused, connects=lambda: False))
    for at in range(1, 6):
        beats.turn(at)
        assert (beats.holder("a"), revoked) == ("before", [])
        monkeypatch.setattr(beats.beat.firing, "_not_before", 0.0)
    assert beats.id_of("a", 1) in seen or not seen, "it has its window while it is on its way"
    assert beats.redis.hlen(beats.beat.keys.replaces) == 0
    assert beats.fired("b") == ([] if seen else [1, 2, 3, 4, 5])
    monkeypatch.undo()


def test_the_run_before_ends_when_the_message_is_there(
    elsewhere: Make, monkeypatch: pytest.MonkeyPatch, revoked: list[str]
) -> None:
    """Also if the beat that has claimed it dies before that is known: whoever publishes it again ends that run."""
    beats = elsewhere({"a": {"overlap": "terminate_other"}})
    beats.turn(1)
    assert (beats.fired("a"), beats.holder("a"), revoked) == ([1], beats.id_of("a", 1), [])

    def unknown(*_: Any, **__: Any) -> bool:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    monkeypatch.setattr(beats.beat.firing, "_messages", SimpleNamespace(publish=unknown, connects=lambda: False))
    beats.turn(2)
    assert (beats.record("a").pending, beats.holder("a")) == (beats.clock.at, beats.id_of("a", 2))
    beats.turn(2.5)
    assert revoked == []
    beats.next_leader()
    beats.turn(2.7)
    assert beats.fired("a") == [1, 2]
    assert (beats.holder("a"), revoked) == (beats.id_of("a", 2), [beats.id_of("a", 1)])
    beats.turn(3)
    beats.turn(3.5)
    assert revoked == [beats.id_of("a", 1), beats.id_of("a", 2)]


def test_a_claim_whose_message_lies_beside_the_records_by_now(led: Make, revoked: list[str]) -> None:
    """Its beat has died, and the broker is another one since: sent in one script, which ends the run before."""
    beats = led({"a": {"overlap": "terminate_other"}})
    beats.turn(1)
    record, claimed_id = beats.record("a"), beats.id_of("a", 2)
    claim = StepToTake(
        name="a",
        old=record.text(),
        new=claimed(record, Fire(beats.clock.at + 1)).text(),
        overlap="terminate_other",
        claim="made",
        window=beats.beat.keys.window("a"),
        window_ttl=60,
        task_id=claimed_id,
    )
    assert beats.beat.store.take("owner-1", [claim])[0].holder == beats.id_of("a", 1)
    beats.clock.at += 1
    beats.next_leader()
    beats.turn(2.5)
    assert beats.fired("a") == [1, 2]
    assert (beats.holder("a"), revoked) == (claimed_id, [beats.id_of("a", 1)])


def test_redis_away_before_a_message_is_confirmed(elsewhere: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever script is not answered: the schedule goes on, and each of its slots is sent once or under one id."""
    for lost in range(1, 6):
        name = f"s{lost}"
        beats = elsewhere({name: {}}, hardened_key_prefix=f"lost{lost}")
        take = beats.beat.store.take
        calls: list[Any] = []

        def fails(*args: Any, calls: Any = calls, take: Any = take, lost: int = lost) -> Any:
            calls.append(args)
            if len(calls) == lost:
                raise StoreUnavailableError("firing schedules", "connection reset")
            return take(*args)

        monkeypatch.setattr(beats.beat.store, "take", fails)
        for at in (1, 1.5, 2, 2.5, 3, 3.5):
            beats.turn(at)
        monkeypatch.undo()
        assert len(calls) > lost
        assert set(beats.fired(name)) == {1, 2, 3}
        assert beats.record(name).fired == 3
        assert beats.record(name).pending is None


def test_pending_slots_are_not_forgotten_when_redis_is_away(elsewhere: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published again, and the answer to its confirmation is lost: it is seen to again, and the schedule goes on."""
    beats = elsewhere({"a": {}})
    publish = beats.beat.firing._messages.publish  # type: ignore[attr-defined]

    def unknown(*_: Any, **__: Any) -> bool:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    monkeypatch.setattr(beats.beat.firing, "_messages", SimpleNamespace(publish=unknown, connects=lambda: False))
    beats.turn(1)
    monkeypatch.setattr(beats.beat.firing, "_messages", SimpleNamespace(publish=publish))
    monkeypatch.setattr(beats.beat.firing, "_not_before", 0.0)

    def away(*_: Any) -> Any:
        raise StoreUnavailableError("firing schedules", "connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(beats.beat.store, "take", away)
        beats.turn(1.1)
    beats.turn(1.2)
    beats.turn(2)
    assert beats.record("a").pending is None
    assert set(beats.fired("a")) == {1, 2}


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
def test_a_claim_that_comes_to_nothing_frees_the_window(elsewhere: Make, overlap: str) -> None:
    """The task's own ``apply_async`` has declined: the next slot finds no run in its way."""
    beats = elsewhere({"a": {"task": "shop.declined", "overlap": overlap}}, tasks=declining)
    for at in (1, 2, 3):
        beats.turn(at)
    assert beats.holder("a") is None
    assert beats.record("a").passed == {"not_sent": 3}


@pytest.mark.parametrize("options", [{"time_limit": "sixty"}, {"countdown": "soon"}, {"countdown": float("inf")}])
def test_options_of_one_schedule_do_not_end_the_beat_elsewhere(elsewhere: Make, options: dict[str, Any]) -> None:
    """The others go on."""
    beats = elsewhere({"odd": {"options": options, "overlap": "skip"}, "good": {}})
    for at in (1, 2, 3):
        beats.turn(at)
    assert beats.fired("good") == [1, 2, 3]
    assert "odd" in beats.beat.store.problems()


def test_the_slot_that_waits_is_before_the_next_one_elsewhere(elsewhere: Make) -> None:
    """As in one script."""
    beats = elsewhere({"one": {"overlap": "buffer_one"}})
    for at in (1, 2, 3):
        beats.turn(at)
    beats.ends("one")
    beats.turn(4, settle=False)
    assert beats.fired("one") == [1, 2]
    assert beats.record("one").buffered == beats.clock.at
    assert beats.record("one").passed == {"overlapped": 1}


# --- all of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place", ["together", "apart"])
def test_whatever_fails_every_slot_is_accounted_for(
    led: Make, records_url: str, monkeypatch: pytest.MonkeyPatch, seed: int, place: str
) -> None:
    """Redis that does not answer before or after it has done as asked, a broker that refuses or keeps its silence,
    leaders that are deposed, pauses and runs that end when they like: each slot is fired under its own id or counted
    with a reason, once; no schedule stands still; what an overlap policy keeps apart is apart."""
    dice = Random(seed)
    overlaps = ("allow", "skip", "buffer_one", "cancel_other")
    schedules: dict[str, dict[str, Any]] = {
        f"{overlap}-{way}": {
            "overlap": overlap,
            "options": {} if way == "fast" else {"headers": {"x": 1}, "root_id": "r"},
        }
        for overlap in overlaps
        for way in ("fast", "natural")
    }
    apart = {"records_url": records_url} if place == "apart" else {}
    beats = led(schedules, hardened_beat_grace=5.0, **apart)
    monkeypatch.setattr(beats.app.control, "broadcast", lambda *_, **__: None)

    def trouble(step: Callable[..., Any]) -> Callable[..., Any]:
        def troubled(*args: Any, **kwargs: Any) -> Any:
            luck = dice.random()
            if luck < 0.08:
                raise StoreUnavailableError("firing schedules", "reset")
            answer = step(*args, **kwargs)
            if luck < 0.16:
                raise StoreUnavailableError("firing schedules", "reset")
            return answer

        return troubled

    def faulty() -> None:
        monkeypatch.setattr(beats.beat.store, "take", trouble(beats.beat.store.take))
        if place == "apart":
            publish = beats.beat.firing._messages.publish  # type: ignore[attr-defined]

            def published(*args: Any, **kwargs: Any) -> bool:
                luck = dice.random()
                if luck < 0.1:
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
                answer: bool = publish(*args, **kwargs)
                if luck < 0.2:
                    raise ConnectionResetError(errno.ECONNRESET, "reset")
                return answer

            monkeypatch.setattr(
                beats.beat.firing, "_messages", SimpleNamespace(publish=published, connects=lambda: False)
            )

    def lead() -> None:
        beats.next_leader()
        faulty()

    faulty()
    at = 0.0
    for _ in range(250):
        at = round(at + dice.choice((0.1, 0.3, 0.5, 1.0, 1.0, 4.0)), 3)
        if place == "apart":
            beats.beat.firing._not_before = 0.0  # type: ignore[attr-defined]
        if dice.random() < 0.05:
            lead()
        if dice.random() < 0.05:
            one = dice.choice(sorted(schedules))
            if one in beats.beat.store.paused():
                beats.beat.store.resume(one)
            else:
                beats.beat.store.pause(one, by="test", why="", until=None)
            beats.lead.stamp += 1
        beats.turn(at)
        if beats.beat.leadership.standing() is None:
            lead()
        for name in schedules:
            if dice.random() < 0.3:
                beats.ends(name)
    monkeypatch.undo()
    monkeypatch.setattr(beats.app.control, "broadcast", lambda *_, **__: None)
    for name in schedules:
        beats.beat.store.resume(name)
    at += 120  # whatever was put off for a while
    for _ in range(20):
        for name in schedules:
            beats.ends(name)
        beats.next_leader()
        beats.turn(at)
    for name in schedules:
        record = beats.record(name)
        assert record.cursor == beats.clock.at // 1, name
        assert (record.pending, record.buffered) == (None, None)
        assert record.fired + sum(record.passed.values()) == record.cursor - record.anchor
        sent = [headers["id"] for headers in beats.messages() if headers[HEADER]["schedule"] == name]
        assert len(set(sent)) == record.fired
        assert place == "apart" or len(sent) == record.fired
