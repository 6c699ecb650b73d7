"""What a beat makes of a state that another one left behind: of another release, with another broker, or of itself."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from celery.beat import BeatLazyFunc

from celery_hardened import HardenedTask, deduplicate
from celery_hardened.beat.missed_run import Fire
from celery_hardened.beat.progress import claimed
from celery_hardened.beat.source import Gone
from celery_hardened.beat.steps import MOST_BYTES
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.marks import HEADER
from tests.support.led_beat import START, LedBeats
from tests.support.led_beat import MakeLedBeats as Make

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]


def _claim(beats: LedBeats, name: str, slot: float) -> None:
    """As a beat leaves it that published to another broker, and died before that confirmed the message."""
    record = claimed(beats.record(name), Fire(START + slot))
    beats.redis.hset(beats.beat.keys.records, name, record.text())


# --- claimed by a beat whose broker was elsewhere -------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"countdown": 5}], ids=["template", "natural"])
def test_what_was_claimed_for_another_broker_is_sent_to_this_one(led: Make, options: dict[str, Any]) -> None:
    """The broker was changed between two deploys: the claimed slot is sent, marked as one that may be there twice,
    and its schedule goes on."""
    beats = led({"a": {"options": options, "overlap": "skip"}, "good": {}})
    _claim(beats, "a", 1)
    beats.clock.at = START + 1
    beats.next_leader()
    assert beats.fired("a") == [1]
    (headers,) = [one for one in beats.messages() if one[HEADER]["schedule"] == "a"]
    assert headers[HEADER]["once"]
    assert beats.holder("a") == beats.id_of("a", 1)
    assert (beats.record("a").pending, beats.record("a").fired) == (None, 1)
    beats.ends("a")
    beats.turn(2)
    assert beats.fired("a") == [1, 2]
    assert beats.fired("good") == [1, 2]


def test_what_was_claimed_too_long_ago_is_not_sent(led: Make) -> None:
    """Workers do not remember any more whether they ran it."""
    beats = led({"a": {}})
    _claim(beats, "a", 1)
    beats.clock.at = START + beats.hardening.settings.queue_retention + 10
    beats.next_leader()
    assert beats.record("a").pending is None
    assert beats.record("a").passed["expired"] >= 1
    assert 1 not in beats.fired("a")


# --- a step whose answer was lost -----------------------------------------------------------------------------


def _lose_one_answer(beats: LedBeats, monkeypatch: pytest.MonkeyPatch) -> None:
    take, store = beats.beat.store.take, beats.beat.store

    def lost(owner: str, steps: Any) -> Any:
        answer = take(owner, steps)
        if any(step.messages for step in steps):
            monkeypatch.setattr(store, "take", take)
            raise StoreUnavailableError("firing schedules", "connection reset")
        return answer

    monkeypatch.setattr(store, "take", lost)


def nothing() -> None: ...


def deduplicated(app: Any) -> None:
    app.task(shared=False, name="shop.only", base=HardenedTask)(deduplicate(until="finish")(nothing))


def test_a_lost_answer_frees_no_key_of_the_message_that_is_sent(led: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot is decided again a moment later, and Redis says that it was fired: its message holds its key."""
    beats = led({"a": {"task": "shop.only", "schedule": 3600.0}}, tasks=deduplicated)
    _lose_one_answer(beats, monkeypatch)
    beats.turn(3600)
    assert beats.fired("a") == [3600]
    before = {key for key in beats.redis.scan_iter("*:dedup:*")}
    assert before
    beats.turn(3600.5)
    assert beats.fired("a") == [3600]
    assert {key for key in beats.redis.scan_iter("*:dedup:*")} == before


@pytest.mark.parametrize("options", [{}, {"countdown": 5}], ids=["template", "natural"])
def test_a_lost_answer_is_made_up_for(led: Make, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Where the schedule is kept hears of its run all the same: a one-off is to be switched off there."""
    beats = led({"a": {"options": options}}, more=lambda one: replace(one, one_off=True))
    _lose_one_answer(beats, monkeypatch)
    beats.turn(1)
    assert beats.source.told == []
    beats.turn(1.5)
    assert beats.source.told == ["a"]
    assert beats.fired("a") == [1]


# --- a source that is away at first ----------------------------------------------------------------------------


def test_a_source_that_is_away_at_first_costs_no_record(led: Make) -> None:
    """A database that does not answer a new leader has no schedules yet; those that are due once a year keep
    their records."""
    beats = led({"yearly": {"schedule": 366 * 86_400.0}})
    kept = beats.beat.store.record("yearly")
    schedules, beats.source.schedules = beats.source.schedules, []
    beats.clock.at = START + 40 * 86_400
    beats.next_leader()
    beats.turn(40 * 86_400 + 1)
    assert beats.beat.store.record("yearly") == kept
    beats.source.schedules = schedules
    beats.next_leader()
    assert beats.beat.store.record("yearly") == kept


def test_a_one_off_that_comes_late_is_known_to_have_run(led: Make) -> None:
    """Its database was away when this beat began to lead: it is switched off there all the same."""
    beats = led({"a": {}}, more=lambda one: replace(one, one_off=True))
    beats.turn(1)
    schedules, beats.source.schedules = beats.source.schedules, []
    beats.source.told.clear()
    beats.next_leader()
    beats.source.changes = lambda: schedules  # type: ignore[assignment, return-value]
    beats.turn(2)
    beats.source.changes = lambda: ()  # type: ignore[method-assign]
    beats.turn(3)
    assert beats.source.told == ["a"]
    assert beats.fired("a") == [1]


# --- many large messages -------------------------------------------------------------------------------------------


def test_large_messages_are_not_in_one_call(led: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred schedules with megabytes of arguments: Redis ends a connection that sends too much at once, and then
    none of them would be fired, again and again."""
    names = [f"s{number}" for number in range(12)]
    beats = led({name: {"args": ("x" * 1_000_000,)} for name in names})
    take, sizes = beats.beat.store.take, []

    def measured(owner: str, steps: Any) -> Any:
        sizes.append(sum(len(message.payload) for step in steps for message in step.messages))
        return take(owner, steps)

    monkeypatch.setattr(beats.beat.store, "take", measured)
    beats.turn(1)
    assert {name: beats.record(name).fired for name in names} == dict.fromkeys(names, 1)
    assert max(sizes) <= MOST_BYTES


# --- a broker elsewhere that has trouble with one queue ----------------------------------------------------------


def test_a_queue_that_confirms_nothing_is_tried_less_and_less_often(
    led: Make, records_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try costs the beat seconds, which the other schedules are late by: a broker may take connections, and have
    one queue without a majority. It is tried at least once a minute, and goes on when it confirms again."""
    beats = led({"stuck": {}, "good": {}}, records_url=records_url, hardened_beat_grace=1000.0)
    publish, tries, stuck = beats.beat.firing._messages.publish, [], [True]  # type: ignore[attr-defined]

    def published(schedule: Any, **more: Any) -> bool:
        if schedule.name == "stuck" and stuck:
            tries.append(beats.clock.at - START)
            raise TimeoutError("no confirm")
        answer: bool = publish(schedule, **more)
        return answer

    messages = SimpleNamespace(publish=published, connects=lambda: True)
    monkeypatch.setattr(beats.beat.firing, "_messages", messages)
    for at in range(1, 301):
        beats.turn(at)
    assert len(tries) < 20
    assert max(later - one for one, later in pairwise(tries)) <= 61
    assert beats.fired("good") == [*range(1, 301)]
    stuck.clear()
    for at in range(301, 365):
        beats.turn(at)
    assert beats.record("stuck").pending is None
    assert beats.fired("stuck") == [*range(1, 365)]


def test_a_broker_that_says_nothing_does_not_look_like_a_dead_main_loop(
    led: Make, records_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and never answers, as one that is frozen. Each try ends in time for the next sign of life:
    a beat that is taken for dead lets go of the lead, and so would the next one."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent, monkeypatch.context() as patched:
        url = f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}//"
        beats = LedBeats(url, "q", {"a": {}}, records_url=records_url, broker_connection_timeout=0.2)
        beats.redis.rpush(beats.beat.keys.revoke, '{"id": "x", "terminate": false}')
        signs: list[float] = []
        silences = []
        patched.setattr(beats.lead, "touch", lambda *_: signs.append(time.monotonic()))
        for at in (1, 2.5, 4):
            beats.beat.firing._not_before = 0.0  # type: ignore[attr-defined]
            signs[:] = [time.monotonic()]
            beats.turn(at)
            signs.append(time.monotonic())
            silences.append(max(later - one for one, later in pairwise(signs)))
        beats.close()
    # Two tries of a connection: with the setting as it is, eight seconds of the ten that a beat has. kombu by itself
    # would wait two seconds between them, in each turn; a machine that stands still makes one of them longer.
    assert min(silences) < 2.0, silences


def test_a_claim_whose_schedule_goes_does_not_keep_its_window(
    led: Make, records_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switched off while its message was not known to have arrived, and on again: it is not taken for running for as
    long as a message may lie in a queue."""
    beats = led({"a": {"overlap": "skip"}}, records_url=records_url)
    messages = SimpleNamespace(publish=_is_reset, connects=lambda: True)
    monkeypatch.setattr(beats.beat.firing, "_messages", messages)
    beats.turn(1)
    assert beats.record("a").pending == START + 1
    monkeypatch.setattr(beats.source, "changes", lambda: (Gone("a"),))
    beats.turn(2)
    assert beats.beat.store.record("a") is None
    left: Any = beats.redis.pttl(beats.beat.keys.window("a"))
    assert left <= beats.hardening.settings.lease * 1000


def test_a_claim_that_is_too_old_does_not_keep_its_window(
    led: Make, records_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up, and its schedule goes on within a lease."""
    beats = led({"a": {"overlap": "skip"}}, records_url=records_url)
    messages = SimpleNamespace(publish=_is_reset, connects=lambda: True)
    monkeypatch.setattr(beats.beat.firing, "_messages", messages)
    beats.turn(1)
    beats.turn(5)
    beats.turn(5 + beats.hardening.settings.queue_retention)
    assert beats.record("a").passed["expired"] >= 1
    left: Any = beats.redis.pttl(beats.beat.keys.window("a"))
    assert left <= beats.hardening.settings.lease * 1000


def _is_reset(*_: Any, **__: Any) -> bool:
    raise ConnectionResetError(errno.ECONNRESET, "reset")


# --- one schedule's own errors ------------------------------------------------------------------------------------


class _BrokenError(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


def _raises(*_: Any) -> Any:
    raise _BrokenError


@pytest.mark.parametrize(
    "entry",
    [
        {"schedule": SimpleNamespace(is_due=_raises)},
        {"args": (BeatLazyFunc(_raises),)},
        {"args": (BeatLazyFunc(_raises),), "overlap": "skip"},
    ],
    ids=["schedule", "arguments", "overlap"],
)
@pytest.mark.parametrize("place", ["together", "apart"])
def test_an_error_that_cannot_be_told_is_one_schedules_own(
    led: Make, records_url: str, entry: dict[str, Any], place: str
) -> None:
    """Also an error whose ``__str__`` raises: it must not keep the beat from the schedules that are due with it."""
    natural = {"options": {"countdown": 5}}
    apart = {"records_url": records_url} if place == "apart" else {}
    beats = led({"a": natural, "bad": {**natural, **entry}, "good": natural}, **apart)
    for at in (1, 2, 3):
        beats.turn(at, settle=at == 3)
        assert (beats.fired("a"), beats.fired("good")) == ([*range(1, at + 1)],) * 2
    assert "_BrokenError" in beats.beat.store.problems()["bad"].text


class _Card:
    def __repr__(self) -> str:
        return "4711"


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("place", ["together", "apart"])
def test_no_serializer_quotes_an_argument(
    led: Make, records_url: str, serializer: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Some say what they cannot write; that is an argument, and in no problem and no log."""
    apart = {"records_url": records_url} if place == "apart" else {}
    args = {"json": (_Card(),), "yaml": (_Card(),), "pickle": (lambda: "4711",)}[serializer]
    beats = led({"a": {"args": args, "options": {"serializer": serializer}}}, **apart)
    for at in (1, 2, 3):
        beats.turn(at)
    text = beats.beat.store.problems()["a"].text
    assert "EncodeError" in text
    assert "4711" not in text + caplog.text
    assert "lambda" not in text
