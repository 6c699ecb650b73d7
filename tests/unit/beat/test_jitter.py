"""The same slot is always put off alike, and slots evenly."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.beat.jitter import jitter_problem, offset_of

SLOT = 1_764_547_200.0


def test_offsets_never_change() -> None:
    """Two beats of two releases put a slot off alike: these values are for ever."""
    assert [offset_of("nightly", SLOT + 60 * n, 300.0) for n in range(4)] == [211.633, 96.522, 28.447, 33.171]
    assert offset_of("Rechnungen ü", SLOT, 3600.0) == 910.684
    assert offset_of("nightly", SLOT + 0.001, 300.0) == 138.403


@given(st.text(), st.integers(-(10**12), 10**13).map(lambda ms: ms / 1000), st.floats(0, 1e6, allow_nan=False))
def test_an_offset_is_shorter_than_the_jitter(name: str, slot: float, jitter: float) -> None:
    """[0, jitter), in whole milliseconds: an interval's slot never reaches the next one."""
    offset = offset_of(name, slot, jitter)
    assert 0 <= offset < jitter or offset == 0
    assert offset == round(offset, 3)


def test_offsets_are_evenly_spread() -> None:
    """Of 6,000 slots each sixth of the jitter gets its 1,000, give or take six deviations; so do 6,000 schedules."""
    for offsets in (
        [offset_of("minutely", SLOT + 60 * n, 60.0) for n in range(6000)],
        [offset_of(f"schedule-{n}", SLOT, 60.0) for n in range(6000)],
    ):
        sixths = collections.Counter(int(offset // 10) for offset in offsets)
        assert sorted(sixths) == [0, 1, 2, 3, 4, 5]
        assert all(abs(count - 1000) < 6 * 29 for count in sixths.values())
        assert len(set(offsets)) > 5500


def test_no_jitter_is_no_offset() -> None:
    """Also where less than two milliseconds are to be had."""
    assert offset_of("nightly", SLOT, 0.0) == 0.0
    assert offset_of("nightly", SLOT, 0.001) == 0.0


@pytest.mark.parametrize(("jitter", "period", "refused"), [(0, 0.01, False), (59.9, 60, False), (60, 60, True)])
def test_a_jitter_is_shorter_than_its_interval(jitter: float, period: float, refused: bool) -> None:
    """Else each slot would hold up the next."""
    problem = jitter_problem(jitter, period)
    assert (problem is not None) is refused
    assert problem is None or "jitter (60 s) is not shorter than the interval (60 s)" in problem
