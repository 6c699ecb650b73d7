"""A beat's steps, turn by turn: what goes wrong with one schedule or in between is known to the book afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_hardened import HardenedTask
from celery_hardened.beat.store import NotLeaderError
from celery_hardened.errors import StoreUnavailableError
from tests.support.led_beat import START, declining, nothing
from tests.support.led_beat import MakeLedBeats as Make

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]


# --- what stops in between -------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [False, True], ids=["not-done", "answer-lost"])
def test_redis_away_for_one_script_loses_no_schedule(led: Make, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """All that was due in that call is due again, whether the script was run or not, and is fired once."""
    beats = led({name: {} for name in ("a", "b", "c")})
    take = beats.beat.store.take

    def lost(*args: Any) -> Any:
        if done:
            take(*args)
        raise StoreUnavailableError("firing schedules", "connection reset")

    monkeypatch.setattr(beats.beat.store, "take", lost)
    beats.turn(1)
    monkeypatch.undo()
    beats.turn(1.5)
    beats.turn(2)
    assert {name: beats.fired(name) for name in "abc"} == {name: [1, 2] for name in "abc"}


def test_redis_away_in_the_midst_of_celerys_own_path(led: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule that was under way, and those behind it, are due again."""
    beats = led({name: {"options": {"countdown": 5}} for name in ("a", "b", "c")})
    take = beats.beat.store.take
    calls = []

    def second_fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise StoreUnavailableError("firing schedules", "connection reset")
        return take(*args)

    monkeypatch.setattr(beats.beat.store, "take", second_fails)
    beats.turn(1, settle=False)
    assert len(calls) == 2
    beats.turn(2, settle=False)
    fired = {name: beats.record(name).fired for name in "abc"}
    assert fired == {name: 2 for name in "abc"}


def test_another_beat_leads_in_the_midst_of_a_batch(led: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the old one had not sent is sent by the next one; nothing twice."""
    beats = led({name: {"options": {"countdown": 5}} for name in ("a", "b", "c")})
    old = beats.beat
    take = old.store.take
    calls = []

    def second_is_refused(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise NotLeaderError("another beat leads")
        return take(*args)

    monkeypatch.setattr(old.store, "take", second_is_refused)
    beats.turn(1, settle=False)
    assert old.leadership.standing() is None
    beats.next_leader()
    assert {name: beats.record(name).fired for name in "abc"} == {name: 1 for name in "abc"}


# --- one schedule's own trouble -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"time_limit": "sixty"}, {"countdown": "soon"}, {"countdown": float("inf")}, {"expires": "never"}],
    ids=["time_limit", "countdown", "endless", "expires"],
)
def test_options_that_no_window_can_be_measured_by(led: Make, options: dict[str, Any]) -> None:
    """Such a schedule with an overlap policy is in trouble, or fires; the beat and the other schedules go on."""
    beats = led({"odd": {"options": options, "overlap": "skip"}, "good": {}})
    for at in (1, 2, 3):
        beats.turn(at)
    assert beats.fired("good") == [1, 2, 3]
    if options != {"expires": "never"}:
        assert "could not be published" in beats.beat.store.problems()["odd"].text


def test_a_store_of_ones_own_that_is_away(led: Make) -> None:
    """A task's publish that fails for want of another store than ours is the trouble of its schedule alone."""

    def tasks(app: Any) -> None:
        class Away(HardenedTask):
            abstract = True

            def apply_async(self, *args: Any, **kwargs: Any) -> Any:
                raise StoreUnavailableError("storing a payload", "the bucket does not answer")

        app.task(shared=False, name="shop.away", base=Away)(nothing)

    beats = led({"away": {"task": "shop.away"}, "good": {"options": {"countdown": 5}}}, tasks=tasks)
    for at in (1, 2, 3):
        beats.turn(at)
    assert beats.record("good").fired == 3
    assert "the bucket does not answer" in beats.beat.store.problems()["away"].text


def test_a_slot_that_waited_and_is_not_sent_waits_no_more(led: Make) -> None:
    """The task's own ``apply_async`` has decided that there is nothing to send: counted once."""
    beats = led({"waits": {"task": "shop.declined", "overlap": "buffer_one", "schedule": 1.0}}, tasks=declining)
    beats.redis.hset(beats.beat.keys.window("waits"), "owner", "another")
    ours = beats.app.tasks["shop.declined"]
    type(ours).apply_async, declines = HardenedTask.apply_async, type(ours).apply_async
    beats.turn(1)
    assert beats.record("waits").buffered is not None
    type(ours).apply_async = declines
    beats.ends("waits")
    for _ in range(3):
        beats.turn(1.5)
    assert beats.record("waits").buffered is None
    assert beats.record("waits").passed == {"not_sent": 1}


# --- one that waits --------------------------------------------------------------------------------------


def test_the_slot_that_waits_is_before_the_next_one(led: Make) -> None:
    """The run before it has ended just when another slot is due: the waiting one is fired, and the new one waits."""
    beats = led({"one": {"overlap": "buffer_one"}})
    beats.turn(1)
    beats.turn(2)
    beats.turn(3)
    assert beats.record("one").passed == {"overlapped": 1}
    beats.ends("one")
    beats.turn(4, settle=False)
    assert beats.fired("one") == [1, 2]
    assert beats.record("one").buffered == beats.clock.at
    beats.ends("one")
    beats.turn(4.5)
    assert beats.fired("one") == [1, 2, 4]
    assert beats.history("one") == [
        ("fired", 1), ("buffered", 2), ("overlapped", 3), ("fired", 2), ("buffered", 4), ("fired", 4),
    ]  # fmt: skip


def test_what_waits_is_told_of_when_its_schedule_is_timed_anew(led: Make) -> None:
    """It is counted as superseded with those it stood for, and the history does not leave it waiting."""
    beats = led({"one": {"overlap": "buffer_one"}}, hardened_beat_grace=1.0)
    beats.turn(1)
    beats.turn(6.5)  # 2 to 5 are missed, the run of 5 waits; 6 gives way
    beats.source.schedules = [replace(one, start=START + 6) for one in beats.source.schedules]
    beats.next_leader()
    beats.turn(6.6)
    assert beats.record("one").passed == {"overlapped": 1, "superseded": 4}
    assert beats.history("one")[-1] == ("superseded", 5)
    assert [line.get("count") for line in beats.beat.store.history("one", 1)] == [4]


def test_what_waits_is_fired_by_the_next_leader(led: Make) -> None:
    """Exactly one waits, with the missed slots it stands for; a beat that dies changes nothing."""
    beats = led({"one": {"overlap": "buffer_one"}}, hardened_beat_grace=1.0)
    beats.turn(1)
    beats.turn(6.5)  # 2 to 5 are missed, the run of 5 waits; 6 gives way
    record = beats.record("one")
    assert (record.buffered, record.buffered_missed) == (beats.clock.at - 1.5, 3)
    assert record.passed == {"overlapped": 1}
    beats.next_leader()
    assert beats.fired("one") == [1]
    beats.ends("one")
    beats.turn(6.6)
    assert beats.fired("one") == [1, 5]
    assert beats.messages()[-1]["hardened"]["missed"] == 3
    assert beats.record("one").passed == {"overlapped": 1, "coalesced": 3}


# --- pauses ----------------------------------------------------------------------------------------------


def test_a_pause_that_has_ended_by_our_clock_alone(led: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses end by the server's clock. A beat whose clock is ahead of it asks no more often than it does otherwise,
    and what is due meanwhile is paused."""
    beats = led({"one": {}, "good": {}})
    seconds, _ = beats.redis.time()
    beats.clock.at = float(seconds) + 100
    beats.next_leader()
    while beats.beat.book.next_due() <= beats.clock.at:  # type: ignore[operator]
        beats.turn()
    begun = beats.clock.at
    beats.beat.store.pause("one", by="test", why="", until=float(seconds) + 50)
    asked = []
    take = beats.beat.store.take

    def counted(*args: Any) -> Any:
        asked.append(1)
        return take(*args)

    monkeypatch.setattr(beats.beat.store, "take", counted)
    for at in range(1, 4):
        beats.clock.at = begun + at
        beats.turn()
        assert len(asked) <= 5 * at
    assert beats.record("good").fired - beats.record("one").fired == 3
    assert beats.record("one").passed["paused"] == 3


def test_a_slot_that_waits_waits_for_the_end_of_a_pause_too(led: Make) -> None:
    """It is not fired in the pause, though the run before it is over; then it is, and what was due in it is paused."""
    beats = led({"one": {"overlap": "buffer_one"}})
    beats.turn(1)
    beats.turn(2)
    beats.beat.store.pause("one", by="test", why="", until=None)
    beats.ends("one")
    for at in (2.5, 3, 4):
        beats.turn(at)
    assert beats.fired("one") == [1]
    beats.beat.store.resume("one")
    beats.lead.stamp += 1
    beats.turn(4.5)
    assert beats.fired("one") == [1, 2]
    beats.ends("one")
    beats.turn(5)
    assert beats.fired("one") == [1, 2, 5]
    assert beats.record("one").passed == {"paused": 2}


# --- once ----------------------------------------------------------------------------------------------------


def test_a_one_off_fires_once_whoever_leads(led: Make) -> None:
    """Also after a fail-over, and whatever comes after its first slot is nobody's."""
    beats = led({"one": {}}, more=lambda schedule: replace(schedule, one_off=True))
    beats.turn(0.5)
    beats.next_leader()
    beats.turn(1)
    beats.next_leader()
    for at in (2, 3, 4):
        beats.turn(at)
    assert beats.fired("one") == [1]
    assert beats.record("one").done
    assert beats.record("one").passed == {}


# --- what is said ---------------------------------------------------------------------------------------------


def test_each_leader_says_what_is_wrong(led: Make, caplog: pytest.LogCaptureFixture) -> None:
    """In its own log, though it is known since the one before; what is right by now is known no more."""
    beats = led({"odd": {"task": "unknown", "overlap": "skip"}, "good": {}})
    beats.beat.store.set_problems("owner-1", {"good": "once", "gone": "long ago"})
    since = beats.beat.store.problems()["odd"].since
    caplog.clear()
    beats.next_leader()
    assert [record.message for record in caplog.records if "schedule 'odd'" in record.message]
    assert {name: problem.since for name, problem in beats.beat.store.problems().items()} == {"odd": since}
    caplog.clear()
    beats.turn(1)
    assert not [record.message for record in caplog.records if "schedule 'odd'" in record.message]


# --- runs that are replaced ---------------------------------------------------------------------------------


def test_runs_replaced_before_the_leader_died_are_ended_by_the_next(led: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had fired, and not revoked yet; all of them in few broadcasts."""
    beats = led({name: {"overlap": "terminate_other"} for name in ("a", "b")} | {"c": {"overlap": "cancel_other"}})
    said: list[tuple[frozenset[str], bool]] = []
    monkeypatch.setattr(
        beats.app.control,
        "broadcast",
        lambda command, arguments, **_: said.append((frozenset(arguments["task_id"]), arguments["terminate"])),
    )
    beats.turn(1)
    beats.turn(2, settle=False)
    assert said == []
    beats.next_leader()
    assert sorted(said, key=str) == sorted(
        [
            (frozenset({beats.id_of("a", 1), beats.id_of("b", 1)}), True),
            (frozenset({beats.id_of("c", 1)}), False),
        ],
        key=str,
    )
    beats.turn(2.5)
    assert len(said) == 2
    assert beats.holder("a") == beats.id_of("a", 2)


def test_as_many_runs_are_ended_as_are_replaced(led: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred in one second; while the broker is away none is forgotten."""
    beats = led({f"s{number}": {"overlap": "cancel_other"} for number in range(500)})
    said: set[str] = set()

    def away(*_: Any, **__: Any) -> None:
        raise OSError("away")

    monkeypatch.setattr(beats.app.control, "broadcast", away)
    for at in (1, 2, 3):
        beats.turn(at, settle=False)
    beats.turn(3.1)
    monkeypatch.setattr(
        beats.app.control, "broadcast", lambda command, arguments, **_: said.update(arguments["task_id"])
    )
    beats.turn(3.2)
    assert said == {beats.id_of(f"s{number}", slot) for number in range(500) for slot in (1, 2)}
    assert not beats.redis.exists(beats.beat.keys.revoke)
