"""Intervals, single instants, and slots between two bounds."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.beat.slots import Between, Interval, Once, Slots

#: An ordinary instant, on the millisecond.
NOON = 1_764_590_400.0

instants = st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)
periods = st.one_of(st.integers(10, 5_000), st.integers(10, 10**10)).map(lambda ms: ms / 1000)


def enumerated(slots: Slots, after: float, upto: float) -> list[float]:
    found = []
    slot = slots.after(after)
    while slot is not None and slot <= upto:
        found.append(slot)
        slot = slots.after(slot)
    return found


@given(anchor=instants, period=periods, index=st.integers(0, 10**5))
def test_interval_is_anchor_and_periods(anchor: float, period: float, index: int) -> None:
    """The k-th slot is anchor + k periods to the millisecond, however far away: nothing adds up."""
    slots = Interval(anchor, period)
    exact = round(anchor * 1000) + index * round(period * 1000)

    assert slots.after(exact / 1000) == (exact + round(period * 1000)) / 1000
    assert slots.latest(exact / 1000) == (exact / 1000 if index else None)


@given(anchor=instants, period=periods, at=st.floats(0, 4e9))
def test_interval_after_and_latest_surround_any_instant(anchor: float, period: float, at: float) -> None:
    """latest(x) <= x < after(x) for every float, be it a hair beside a slot, and there is nothing between the two."""
    slots = Interval(anchor, period)
    for instant in (at, math.nextafter(at, 0), math.nextafter(at, math.inf)):
        following, before = slots.after(instant), slots.latest(instant)

        assert following is not None
        assert following > instant
        if before is None:
            assert following == slots.after(-math.inf)
        else:
            assert before <= instant
            assert slots.after(before) == following


@given(
    anchor=instants,
    period=st.integers(10, 500).map(lambda ms: ms / 1000),
    after=st.floats(-3, 20),
    span=st.floats(0, 9),
)
def test_interval_counts_what_it_enumerates(anchor: float, period: float, after: float, span: float) -> None:
    """count(a, b) is the number of slots in (a, b], with bounds off the grid, too."""
    slots = Interval(anchor, period)
    assert slots.count(anchor + after, anchor + after + span) == len(
        enumerated(slots, anchor + after, anchor + after + span)
    )


def test_interval_right_beside_a_slot() -> None:
    """Less than half a millisecond before a slot it has not come; at the slot it has."""
    slots = Interval(NOON, 10)
    assert slots.after(NOON + 9.9996) == NOON + 10
    assert slots.latest(NOON + 9.9996) is None
    assert slots.latest(NOON + 10) == NOON + 10
    assert slots.after(NOON + 10) == NOON + 20


def test_interval_has_no_slot_at_its_anchor_or_before() -> None:
    """The first slot is one period after the anchor."""
    slots = Interval(NOON, 10)
    assert slots.after(-math.inf) == NOON + 10
    assert slots.latest(NOON + 9) is None
    assert slots.count(NOON - 1000, NOON + 10) == 1
    assert slots.count(NOON + 50, NOON + 10) == 0


def test_interval_counts_ages_at_once() -> None:
    """A hundred years of 10 ms: exact, and not walked."""
    assert Interval(0.0, 0.01).count(0.0, 3_155_760_000.0) == 315_576_000_000
    assert Interval(NOON, 10).count(-math.inf, math.inf) > 10**11


def test_once() -> None:
    """One slot: until then it is ahead, from then on it is the latest."""
    slots = Once(NOON)
    assert slots.after(NOON - 0.001) == NOON
    assert slots.after(NOON) is None
    assert slots.latest(NOON) == NOON
    assert slots.latest(NOON - 0.001) is None
    assert slots.count(NOON - 1, NOON) == 1
    assert slots.count(NOON, NOON + 1) == 0


def test_between_includes_its_start_and_excludes_its_end() -> None:
    """A slot at the start is due; one at the end is not."""
    slots = Between(Interval(NOON, 10), NOON + 10, NOON + 30)
    assert enumerated(slots, 0, math.inf) == [NOON + 10, NOON + 20]
    assert slots.latest(math.inf) == NOON + 20
    assert slots.count(0, math.inf) == 2
    assert slots.after(NOON + 20) is None
    assert slots.latest(NOON + 9) is None


def test_between_bounds_off_the_millisecond() -> None:
    """A slot less than a millisecond before the start is before it, and one as little before the end is before that."""
    slots = Between(Interval(NOON, 10), NOON + 10.0004, NOON + 20.0004)
    assert enumerated(slots, 0, math.inf) == [NOON + 20]
    assert slots.latest(math.inf) == NOON + 20
    assert slots.count(0, math.inf) == 1


def test_between_without_bounds_changes_nothing() -> None:
    """The default bounds leave the slots as they are."""
    slots = Between(Interval(NOON, 10))
    assert slots.after(-math.inf) == NOON + 10
    assert slots.latest(NOON + 25) == NOON + 20
    assert slots.count(NOON, NOON + 25) == 2


@given(
    start=st.floats(0, 3),
    length=st.floats(0, 3),
    after=st.floats(-1, 4),
    span=st.floats(0, 5),
    period=st.integers(10, 300),
)
def test_between_counts_what_it_enumerates(start: float, length: float, after: float, span: float, period: int) -> None:
    """Within any bounds, count(a, b) is the number of slots in (a, b]."""
    slots = Between(Interval(NOON, period / 1000), NOON + start, NOON + start + length)
    found = enumerated(slots, NOON + after, NOON + after + span)

    assert slots.count(NOON + after, NOON + after + span) == len(found)
    assert all(NOON + start <= slot < NOON + start + length for slot in found)
    if found:
        assert slots.latest(NOON + after + span) == found[-1]
