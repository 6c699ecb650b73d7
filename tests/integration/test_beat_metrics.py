"""What a beat counts is what its records say; what it tells holds up no schedule."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from celery_hardened import signals
from celery_hardened.beat.store import NotLeaderError
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.metrics.catalogue import (
    BEAT_LATE_SECONDS,
    BEAT_LEADER,
    BEAT_PROBLEMS,
    BEAT_SCHEDULES,
    BEAT_SLOTS,
    BEAT_TERM,
    BEAT_TICK,
    PUBLISHED,
)
from tests.support.led_beat import LedBeats, declining
from tests.support.led_beat import MakeLedBeats as Make
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

SCHEDULES: dict[str, dict[str, Any]] = {
    "once": {"missed_run": "run_once", "grace": 2},
    "skips": {"missed_run": "skip", "grace": 2},
    "all": {"missed_run": "run_all", "grace": 2, "max_catchup": 3},
    "expires": {"missed_run": "run_all", "grace": 2, "catchup_window": 10},
    "alone": {"overlap": "skip", "grace": 2},
    "one_waits": {"overlap": "buffer_one", "grace": 2},
    "ends_other": {"overlap": "cancel_other", "grace": 2},
    "declined": {"task": "shop.declined", "grace": 2},
    "slowly": {"options": {"countdown": 5}, "grace": 2},
    "spread": {"jitter": 0.5, "grace": 2},
}


@pytest.fixture(params=["one step", "two steps"])
def make(request: pytest.FixtureRequest, led: Make, records_url: str) -> Make:
    """Beats of both ways to fire."""
    if request.param == "one step":
        return led
    return lambda schedules, **more: led(schedules, records_url=records_url, **more)


@pytest.fixture
def connect() -> Iterator[Callable[..., None]]:
    """Connects receivers for the test alone."""
    connected: list[tuple[Any, Any]] = []

    def connect(signal: Any, receiver: Any) -> None:
        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


def counted(beats: LedBeats) -> dict[str, Counter[str]]:
    """Slots by schedule and outcome, as the metrics have them."""
    found: dict[str, Counter[str]] = {}
    for (schedule, outcome), count in beats.hardening.metrics.registry.values(BEAT_SLOTS).items():
        found.setdefault(schedule, Counter())[outcome] += int(count)
    return {name: +counts for name, counts in found.items()}


def recorded(beats: LedBeats) -> dict[str, Counter[str]]:
    """The same, as the records have them."""
    return {name: +Counter({"fired": beats.record(name).fired, **beats.record(name).passed}) for name in SCHEDULES}


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_what_the_records_say(make: Make, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Through missed runs, overlaps, pauses, lost answers, other leaders and re-timed schedules: each slot is
    counted once, for the reason that the record gives."""
    dice = Random(seed)
    beats = make(SCHEDULES, tasks=declining)
    lost: list[int] = []

    def losing(take: Callable[..., Any]) -> Callable[..., Any]:
        def lossy(*args: Any) -> Any:
            taken = take(*args)
            if args[1] and dice.random() < 0.1:
                lost.append(1)
                raise StoreUnavailableError("firing schedules", "connection reset")
            return taken

        return lossy

    at = 0.0
    for number in range(120):
        # The answers are heard again before another beat leads: what is lost with the lead nobody counts.
        noisy = number % 40 < 30
        monkeypatch.setattr(beats.beat.store, "take", losing(type(beats.beat.store).take.__get__(beats.beat.store)))
        if not noisy:
            monkeypatch.undo()
        at = round(at + dice.choice([0.5, 1, 1, 1, 1, 3, 8, 25]), 3)
        beats.turn(at)
        if dice.random() < 0.3:
            for name in ("alone", "one_waits", "ends_other"):
                beats.ends(name)
        name = dice.choice([*SCHEDULES])
        if dice.random() < 0.2:
            beats.beat.store.pause(name, by="test", why="", until=None)
            beats.lead.stamp += 1
        elif dice.random() < 0.5:
            for paused in [*beats.beat.book.paused]:
                beats.beat.store.resume(paused)
            beats.lead.stamp += 1
        if number % 40 == 39:
            monkeypatch.undo()
            beats.next_leader()
    monkeypatch.undo()
    for _ in range(30):  # what is late is made up for
        at += 1
        beats.turn(at)

    assert lost
    assert counted(beats) == recorded(beats)
    seen = Counter[str]()
    for counts in counted(beats).values():
        seen += counts
    reasons = {"coalesced", "skipped", "beyond_max_catchup", "expired", "overlapped", "paused", "not_sent"}
    assert reasons | {"fired"} <= set(seen)


def test_each_fire_is_a_publish_and_is_late_by_so_much(make: Make) -> None:
    """Publishes by task and queue; lateness without slots that waited for a run, or are made up for one by one."""
    schedules: dict[str, dict[str, Any]] = {
        "plain": {},
        "routed": {"options": {"queue": "other"}},
        "slowly": {"options": {"countdown": 5}},
        "one_waits": {"overlap": "buffer_one"},
    }
    beats = make(schedules)
    registry = beats.hardening.metrics.registry
    for at in range(1, 4):
        beats.turn(at + 0.25)
    fired = sum(beats.record(name).fired for name in schedules)
    assert fired == 10  # of the one that waits the first alone
    assert registry.values(PUBLISHED) == {
        ("shop.work", beats.queue, "published"): 7,
        ("shop.work", "other", "published"): 3,
    }
    assert registry.value(BEAT_LATE_SECONDS) == 10
    assert registry._buckets[BEAT_LATE_SECONDS][()][-1] == pytest.approx(2.5)
    beats.ends("one_waits")
    beats.turn(3.5)
    assert beats.record("one_waits").fired == 2
    assert registry.value(BEAT_LATE_SECONDS) == 10
    assert registry.values(PUBLISHED)["shop.work", beats.queue, "published"] == 8


def test_the_gauges(make: Make) -> None:
    """Leader, term, last turn, schedules and problems, at each look; of a standby no schedules."""
    beats = make({"good": {}, "bad": {"overlaps": "skip"}})
    registry = beats.hardening.metrics.registry
    for source in registry._sources:
        source()
    found = [registry.value(family) for family in (BEAT_LEADER, BEAT_TERM, BEAT_SCHEDULES, BEAT_PROBLEMS)]
    assert found == [1, 1, 1, 1]
    before = registry.value(BEAT_TICK)
    assert registry.values(BEAT_SLOTS) == {("good", "fired"): 0}
    beats.lead.now = None
    beats.turn(1)
    for source in registry._sources:
        source()
    found = [registry.value(family) for family in (BEAT_LEADER, BEAT_TERM, BEAT_SCHEDULES, BEAT_PROBLEMS)]
    assert found == [0, 1, 0, 0]
    assert registry.value(BEAT_TICK) > before


def test_without_metrics_nothing_is_counted(make: Make) -> None:
    """``hardened_metrics = False``: schedules are fired, signals are sent."""
    beats = make(SCHEDULES, tasks=declining, hardened_metrics=False)
    beats.turn(1)
    beats.turn(60)
    assert beats.record("once").fired >= 2
    registry = beats.hardening.metrics.registry
    assert not registry._values
    assert not registry._buckets


# --- signals ------------------------------------------------------------------------------------------------


def test_fires_and_missed_slots_are_told(make: Make, connect: Callable[..., None]) -> None:
    """One ``schedule_fired`` for each fire, one ``schedule_missed`` for each row of slots that passed."""
    told: list[tuple[Any, ...]] = []
    connect(signals.schedule_fired, lambda sender, **what: told.append(("fired", sender, what)))
    connect(signals.schedule_missed, lambda sender, **what: told.append(("missed", sender, what)))
    beats = make({"once": {"grace": 2}, "skips": {"missed_run": "skip", "grace": 2}, "alone": {"overlap": "skip"}})
    start = beats.clock.at
    beats.turn(1)
    beats.turn(10)
    beats.beat.metrics.signals.close()
    assert all(sender is beats.app for _, sender, _ in told)
    fired = {(what["schedule"], what["slot"] - start): what for kind, _, what in told if kind == "fired"}
    assert {("once", 1.0), ("once", 7.0), ("skips", 1.0), ("alone", 1.0)} <= set(fired)
    assert fired["once", 7.0]["missed"] == 5
    assert fired["once", 7.0]["task_id"] == beats.id_of("once", 7)
    missed = {what["schedule"]: what for kind, _, what in told if kind == "missed"}
    assert {k: missed["skips"][k] - (start if k == "slot" else 0) for k in ("slot", "count")} == {"slot": 7, "count": 6}
    assert missed["skips"]["reason"] == "skipped"
    assert missed["alone"]["reason"] == "overlapped"
    assert "once" not in missed  # its fire stands for them


def test_a_receiver_that_raises_or_hangs_holds_up_nothing(
    make: Make, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receivers run in a thread of their own: one that ends it, one that fails, one that does not come back."""
    gate, heard = threading.Event(), []

    def hear(slot: float, **_: Any) -> None:
        heard.append(slot)
        if len(heard) == 1:
            raise ValueError("a receiver")
        if len(heard) == 2:
            raise SystemExit
        gate.wait(60)

    connect(signals.schedule_fired, hear)
    monkeypatch.setattr("celery_hardened.pipeline.beat_signals.MOST", 5)
    beats = make({"one": {}})
    for at in range(1, 20):
        beats.turn(at)
    assert beats.record("one").fired == 19
    until(lambda: len(heard) == 3, what="the third signal")
    gate.set()
    beats.beat.metrics.signals.close()
    assert len(heard) < 19  # beyond the bound they are dropped, not kept for ever


def test_a_lead_that_is_lost_in_a_step_is_counted_by_who_leads_then(led: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Redis refused to the old leader is no slot of its."""
    beats = led({"one": {}})

    def refused(*_: Any) -> Any:
        raise NotLeaderError("another beat leads")

    monkeypatch.setattr(beats.beat.store, "take", refused)
    beats.turn(1)
    assert counted(beats).get("one", Counter()) == Counter()
    monkeypatch.undo()
    beats.next_leader()
    assert counted(beats)["one"] == Counter(fired=1)
