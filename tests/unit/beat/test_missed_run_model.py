"""The laws of missed runs, over any slots, policies, outages and clocks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_hardened.beat.jitter import offset_of
from celery_hardened.beat.missed_run import Fire, Pass, Wait, decide
from celery_hardened.beat.policy import MissedRun, Policy
from celery_hardened.beat.slots import Interval, Slots


@dataclass
class Listed:
    """Slots from a list, which count how often they are asked."""

    all: list[float]
    asked: int = 0

    def after(self, instant: float) -> float | None:
        self.asked += 1
        index = bisect_right(self.all, instant)
        return self.all[index] if index < len(self.all) else None

    def latest(self, instant: float) -> float | None:
        self.asked += 1
        index = bisect_right(self.all, instant)
        return self.all[index - 1] if index else None

    def count(self, after: float, upto: float) -> int:
        self.asked += 1
        return max(0, bisect_right(self.all, upto) - bisect_right(self.all, after))


@dataclass
class Told:
    """What became of the slots, as decide() said it."""

    reason: dict[float, str] = field(default_factory=dict)
    fires: list[tuple[float, Fire]] = field(default_factory=list)
    """When, and what."""

    def account(self, slots: list[float], reason: str) -> None:
        for slot in slots:
            assert slot not in self.reason, f"{slot} was {self.reason[slot]} and is {reason}"
            self.reason[slot] = reason


policies = st.builds(
    lambda missed_run, grace, more, most, jitter: Policy(
        missed_run=missed_run,
        grace=grace,
        catchup_window=None if more is None else grace + more,
        max_catchup=most,
        jitter=jitter,
    ),
    st.sampled_from(["run_once", "skip", "run_all"]),
    st.integers(0, 40_000).map(lambda ms: ms / 1000),
    st.none() | st.integers(0, 200_000).map(lambda ms: ms / 1000),
    st.integers(1, 6),
    st.just(0.0) | st.integers(1, 60_000).map(lambda ms: ms / 1000),
)
gaps = st.one_of(st.integers(1, 3000), st.integers(1, 100_000))
timelines = st.lists(gaps, min_size=1, max_size=40).map(lambda found: [ms / 1000 for ms in accumulate(found)])
#: Milliseconds to the next look; an outage is a long one, and a clock may be brought back.
looks = st.lists(
    st.tuples(st.one_of(st.integers(1, 2000), st.integers(1, 400_000), st.integers(-20_000, -1)), st.booleans()),
    min_size=1,
    max_size=25,
)


@settings(max_examples=400, deadline=None)
@given(timelines, policies, looks, st.text(max_size=3))
def test_every_slot_is_decided_once_and_rightly(
    all_slots: list[float], policy: Policy, ticks: list[tuple[int, bool]], name: str
) -> None:
    """Exactly once, in order, never early; on time it fires; missed, it is what the policy says."""
    slots = Listed(all_slots)
    own = [slot + offset_of(name, slot, policy.jitter) for slot in all_slots]
    # A slot is due when it and all before it are.
    due = dict(zip(all_slots, (round(at, 3) for at in accumulate(own, max)), strict=True))
    told = Told()
    cursor, now = 0.0, 0.0
    for wait, paused in ticks:
        # A whole millisecond: a sum of floats may lie right below one, and what is due then is not due yet.
        now = round(now + wait / 1000, 3)
        late = round(now - policy.grace, 3)
        gone = None if policy.catchup_window is None else round(now - policy.catchup_window, 3)
        made_up: list[float] = []
        for _ in range(len(all_slots) + 3):
            slots.asked = 0
            step = decide(
                slots,
                after=cursor,
                now=now,
                policy=policy,
                offset=lambda slot: offset_of(name, slot, policy.jitter),
                paused=paused,
            )
            if not policy.jitter:
                assert slots.asked <= 40
            if isinstance(step, Wait):
                break
            upto = step.slot if isinstance(step, Fire) else step.upto
            covered = all_slots[bisect_right(all_slots, cursor) : bisect_right(all_slots, upto)]
            assert upto > cursor
            assert covered[-1] == upto
            assert all(due[slot] <= now for slot in covered), "early"
            assert all(at <= now for at in own[: bisect_right(all_slots, upto)]), "before its own time"
            cursor = upto
            if isinstance(step, Fire):
                assert not paused
                assert step.missed == len(covered) - 1
                told.account(covered[:-1], "coalesced")
                told.account(covered[-1:], "fired")
                told.fires.append((now, step))
                assert gone is None or all(due[slot] >= gone for slot in covered), "expired, and fired"
                if due[upto] < late:
                    assert policy.missed_run != "skip"
                    made_up.append(upto)
                    assert step.catchup is (policy.missed_run == "run_all")
                    behind = all_slots[bisect_right(all_slots, cursor) :]
                    assert step.catchup or not behind or due[behind[0]] >= late, "not the latest"
                else:
                    assert (step.missed, step.catchup) == (0, False), "on time under its own name"
            else:
                assert step.first == covered[0]
                assert step.count == len(covered)
                told.account(covered, step.reason)
                if step.reason == "beyond_max_catchup":
                    left = [slot for slot in all_slots[bisect_right(all_slots, cursor) :] if due[slot] < late]
                    assert len(left) == policy.max_catchup
                check_passed(step, paused, policy.missed_run, [due[slot] for slot in covered], late, gone)
        else:
            pytest.fail("decide() never waits")
        assert made_up == sorted(made_up)
        assert len(made_up) <= (policy.max_catchup if policy.missed_run == "run_all" else 1)
        # Nothing is forgotten, and it is looked at again in time.
        rest = all_slots[bisect_right(all_slots, cursor) :]
        assert step == Wait(due[rest[0]] if rest else None)
        assert not rest or due[rest[0]] > now
    assert set(told.reason) == set(all_slots[: bisect_right(all_slots, cursor)])
    assert all(earlier.slot < later.slot for (_, earlier), (_, later) in pairwise(told.fires))


def check_passed(
    step: Pass, paused: bool, missed_run: MissedRun, due: list[float], late: float, gone: float | None
) -> None:
    """Only what is late passes, for the reason that holds for it, and what may still be made up for is not expired."""
    if paused:
        assert step.reason == "paused"
        return
    assert all(at < late for at in due), "on time, and not fired"
    if gone is not None and due[0] < gone:
        assert step.reason == "expired"
        assert all(at < gone for at in due)
    else:
        assert step.reason == {"skip": "skipped", "run_all": "beyond_max_catchup"}.get(missed_run)


@settings(max_examples=100, deadline=None)
@given(timelines, st.integers(1, 6), st.integers(1, 300_000), st.integers(1, 500))
def test_a_paced_catchup_fires_no_more_than_its_most(
    all_slots: list[float], most: int, outage: int, pause: int
) -> None:
    """Of what one outage missed, the newest, oldest first. What is late by the time they are made up for joins them."""
    policy = Policy(missed_run="run_all", max_catchup=most, catchup_window=None, grace=1.0)
    slots = Listed(all_slots)
    now = all_slots[0] + outage / 1000
    missed = all_slots[: bisect_left(all_slots, round(now - policy.grace, 3))]
    fired: list[float] = []
    cursor = 0.0
    while not isinstance(step := decide(slots, after=cursor, now=now, policy=policy), Wait):
        if isinstance(step, Fire):
            fired.append(step.slot)
            now = round(now + pause / 1000, 3)
            cursor = step.slot
        else:
            cursor = step.upto
    of_outage = [slot for slot in fired if slot in missed]
    assert of_outage == sorted(of_outage)
    assert len(of_outage) <= most
    assert set(of_outage) <= set(missed[-most:])
    if all_slots[len(missed) : bisect_left(all_slots, round(now - policy.grace, 3))] == []:
        assert of_outage == missed[-most:]


@dataclass
class Asked:
    """Counts the questions to *slots*."""

    slots: Slots
    times: int = 0

    def after(self, instant: float) -> float | None:
        self.times += 1
        return self.slots.after(instant)

    def latest(self, instant: float) -> float | None:
        self.times += 1
        return self.slots.latest(instant)

    def count(self, after: float, upto: float) -> int:
        self.times += 1
        return self.slots.count(after, upto)


@pytest.mark.parametrize("missed_run", ["run_once", "skip", "run_all"])
@pytest.mark.parametrize("offset", [lambda slot: 0.0, lambda slot: offset_of("nightly", slot, 50.0)])
def test_a_month_of_minutes_is_cheap(missed_run: MissedRun, offset: Callable[[float], float]) -> None:
    """43,200 missed slots are decided in three steps and fewer than a hundred questions; then one a fire."""
    month = 30 * 86_400.0
    slots = Asked(Interval(0.0, 60.0))
    jitter = 50.0 if offset(60.0) else 0.0
    policy = Policy(missed_run=missed_run, catchup_window=None, jitter=jitter)
    cursor, steps, fires = 0.0, 0, 0
    while not isinstance(step := decide(slots, after=cursor, now=month, policy=policy, offset=offset), Wait):
        cursor = step.slot if isinstance(step, Fire) else step.upto
        fires += isinstance(step, Fire)
        steps += 1
    assert cursor >= month - 60
    assert steps <= 2 + fires
    assert fires <= 101
    assert slots.times <= 100 + 12 * fires
