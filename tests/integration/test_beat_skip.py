"""A slot that somebody has skipped: it and no other is passed over, whoever leads, and it is told by whom and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_hardened.beat.policy import Policy
from celery_hardened.beat.skip import NotSkippedError, Skip
from celery_hardened.beat.skip_store import SkipStore
from celery_hardened.beat.store import NotLeaderError
from tests.support.led_beat import START, LedBeats
from tests.support.led_beat import MakeLedBeats as Make

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]


@pytest.fixture(params=["together", "elsewhere"])
def beats_of(request: pytest.FixtureRequest, led: Make) -> Make:
    """Beats whose queues lie beside the records, where claim and publish are one step; and elsewhere, where they
    are two."""
    if request.param == "together":
        return led
    url = request.getfixturevalue("records_url")
    return lambda schedules, **more: led(schedules, records_url=url, **more)


def skips(beats: LedBeats) -> SkipStore:
    return SkipStore(beats.redis, beats.beat.keys)


def skip(beats: LedBeats, name: str = "one", why: str = "audit") -> Skip:
    """Skip the coming slot by the test's clock, and have the leader look at its next turn."""
    schedule = beats.beat.book.schedules[name]
    made = skips(beats).skip_next(schedule, by="eve", why=why, now=beats.clock.at)
    beats.lead.stamp = beats.beat.store.stamp()
    return made


def told(beats: LedBeats, name: str = "one") -> list[tuple[float, str]]:
    """What the history says, oldest first: seconds since the start, and the outcome."""
    return [(line["slot"] - START, line["outcome"]) for line in reversed(beats.beat.store.history(name, 100))]


def test_the_slot_is_passed_over_and_told_of_and_no_other(beats_of: Make) -> None:
    """Fired before and after it; the history says who and why; the count is in the record; the skip is over."""
    beats = beats_of({"one": {}, "two": {}})
    beats.turn(1)
    assert skip(beats).slot == START + 2
    for at in (2, 3):
        beats.turn(at)
    assert beats.fired("one") == [1, 3]
    assert beats.fired("two") == [1, 2, 3]
    assert told(beats) == [(1, "fired"), (2, "skipped_by_hand"), (3, "fired")]
    (line,) = [one for one in beats.beat.store.history("one", 100) if one["outcome"] == "skipped_by_hand"]
    assert (line["by"], line["why"], line["count"]) == ("eve", "audit", 1)
    assert beats.record("one").passed == {"skipped_by_hand": 1}
    assert skips(beats).skips() == {}


def test_a_leader_that_is_in_the_midst_of_firing_obeys(beats_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has decided to fire the slot and made its message when the skip comes: Redis has the last word."""
    beats = beats_of({"one": {}})
    beats.turn(1)
    take = beats.beat.store.take

    def skipped_meanwhile(owner: str, steps: Any) -> Any:
        if steps and steps[0].checks_pause and skips(beats).skips() == {}:
            assert skips(beats).skip("one", Skip(START + 2, "eve", "audit", 0.0), record=steps[0].old)
        monkeypatch.undo()
        return take(owner, steps)

    monkeypatch.setattr(beats.beat.store, "take", skipped_meanwhile)
    beats.turn(2)
    beats.turn(3)
    assert beats.fired("one") == [1, 3]
    assert told(beats)[1] == (2, "skipped_by_hand")


def test_a_leader_that_took_over_obeys_and_the_old_one_cannot_fire(beats_of: Make) -> None:
    """What one beat was told holds for the next: nothing of it is in memory."""
    beats = beats_of({"one": {}})
    beats.turn(1)
    skip(beats)
    old, owner = beats.beat, f"owner-{beats.term}"
    beats.next_leader()
    beats.turn(2)
    beats.turn(3)
    assert beats.fired("one") == [1, 3]
    with pytest.raises(NotLeaderError):
        old.store.take(owner, [])


def test_taken_back_until_a_beat_passes_over_it(beats_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the leader has been told of it and is about to pass over the slot: it is fired then."""
    beats = beats_of({"one": {}})
    beats.turn(1)
    slot = skip(beats).slot
    take = beats.beat.store.take
    answers = []

    def taken_back_meanwhile(owner: str, steps: Any) -> Any:
        if steps and steps[0].takes_skip:
            answers.append(skips(beats).unskip("one", slot))
        return take(owner, steps)

    monkeypatch.setattr(beats.beat.store, "take", taken_back_meanwhile)
    beats.turn(2)
    monkeypatch.undo()
    beats.turn(3)
    assert answers == [True]
    assert beats.fired("one") == [1, 2, 3]
    assert beats.record("one").passed == {}
    assert not skips(beats).unskip("one", slot)


def test_one_that_is_over_cannot_be_taken_back(beats_of: Make) -> None:
    """Its slot was passed over, and that is said."""
    beats = beats_of({"one": {}})
    beats.turn(1)
    slot = skip(beats).slot
    beats.turn(2)
    assert not skips(beats).unskip("one", slot)
    assert beats.fired("one") == [1]


def test_a_slot_that_is_decided_meanwhile_is_not_skipped(beats_of: Make) -> None:
    """The record that it was named by is not the one that is there: the next slot is named, or it is refused."""
    beats = beats_of({"one": {}})
    beats.turn(1)
    text = beats.beat.store.record("one")
    beats.turn(2)
    assert not skips(beats).skip("one", Skip(START + 2, "eve", "", 0.0), record=text)
    with pytest.raises(NotSkippedError, match="not the coming one any more"):
        skips(beats).skip_next(beats.beat.book.schedules["one"], by="eve", why="", now=beats.clock.at, only=START + 2)
    assert skip(beats).slot == START + 3
    with pytest.raises(NotSkippedError, match="is skipped already, by eve: audit"):
        skip(beats)


@pytest.mark.parametrize(
    ("missed_run", "fired", "passed"),
    [
        ("run_once", [1, 3, 5], {"coalesced": 1, "skipped_by_hand": 1}),
        ("run_all", [1, 2, 3, 5], {"skipped_by_hand": 1}),
        ("skip", [1], {"skipped": 3, "skipped_by_hand": 1}),
    ],
)
def test_a_skipped_slot_among_missed_ones(
    beats_of: Make, missed_run: str, fired: list[int], passed: dict[str, int]
) -> None:
    """No beat was there for it and its neighbours: those are made up for by policy, and it is passed over."""
    beats = beats_of({"one": {"missed_run": missed_run, "grace": 3.0}})
    beats.turn(1)
    assert skips(beats).skip("one", Skip(START + 4, "eve", "audit", 0.0), record=beats.beat.store.record("one"))
    beats.clock.at = START + 8.9
    beats.next_leader()
    for tenth in range(1, 6):
        beats.turn(8.9 + tenth / 10)
    assert [slot for slot in beats.fired("one") if slot <= 5] == fired, told(beats)
    assert beats.record("one").passed == passed
    assert (4, "skipped_by_hand") in told(beats)


def test_overlaps_and_waiting_slots(beats_of: Make) -> None:
    """The skipped slot does not wait for the run before it, and one that waits already is fired."""
    beats = beats_of({"one": {"overlap": "buffer_one"}})
    beats.turn(1)
    beats.turn(2)
    assert beats.record("one").buffered == START + 2
    assert skip(beats).slot == START + 3
    beats.turn(3)
    assert beats.record("one").passed == {"skipped_by_hand": 1}
    beats.ends("one")
    beats.turn(3.5)
    assert beats.fired("one") == [1, 2]


def test_a_pause_comes_first(beats_of: Make) -> None:
    """Then it is paused, and what was skipped in the pause means nothing afterwards."""
    beats = beats_of({"one": {}})
    beats.turn(1)
    slot = skip(beats)
    beats.beat.store.pause("one", by="eve", why="", until=None)
    beats.lead.stamp = beats.beat.store.stamp()
    beats.turn(2)
    beats.beat.store.resume("one")
    beats.lead.stamp = beats.beat.store.stamp()
    beats.turn(3)
    assert beats.record("one").passed == {"paused": 1}
    assert beats.fired("one") == [1, 3]
    assert not slot.stands(beats.beat.store.record("one"))


def test_run_now_is_no_slot(beats_of: Make) -> None:
    """Somebody who fires the schedule by hand meanwhile gets a run."""
    beats = beats_of({"one": {}})
    beats.turn(1)
    skip(beats)
    step = replace(_step(beats), messages=())
    assert beats.beat.store.trigger(step).outcome == "taken"


def _step(beats: LedBeats) -> Any:
    from celery_hardened.beat.steps import StepToTake

    return StepToTake(name="one", new="by hand", task_id="by-hand", checks_pause=True)


def test_what_has_no_coming_slot_is_refused(beats_of: Make) -> None:
    """An interval that no beat has seen: its slots are not known."""
    beats = beats_of({"one": {}})
    schedule = replace(beats.beat.book.schedules["one"], name="never seen", policy=Policy())
    with pytest.raises(NotSkippedError, match="from when a beat first sees it"):
        skips(beats).skip_next(schedule, by="eve", why="", now=START)


def test_the_key_lives_as_long_as_what_is_in_it(beats_of: Make) -> None:
    """90 days behind the last slot; one whose slot was over before that goes with the next skip."""
    beats = beats_of({"one": {}})
    seconds = int(beats.redis.time()[0])
    store, days = skips(beats), 86_400
    assert store.skip("old", Skip(float(seconds - 91 * days), "eve", "", 0.0), record=None)
    assert store.skip("one", Skip(float(seconds + 10 * days), "eve", "", 0.0), record=beats.beat.store.record("one"))
    assert set(store.skips()) == {"one"}
    assert 100 * days - 60 < int(beats.redis.ttl(beats.beat.keys.skips)) <= 100 * days + 60
