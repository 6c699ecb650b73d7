"""The ``hardened`` header: read from whatever arrives, written strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.marks import HEADER, HISTORY_MAX, Marks, deaths_in, is_redriven

FIELDS = (
    "v", "published", "first_published", "first_failed", "waited", "deaths", "redrives", "redrive", "key",
    "correlation_id", "history", "attempt",
)  # fmt: skip

#: Anything JSON can say, and more.
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)
raw_headers = anything | st.dictionaries(st.sampled_from(FIELDS), anything)

times = st.floats(min_value=1, max_value=4e9)
marks = st.builds(
    Marks,
    published=times,
    first_published=times,
    first_failed=st.none() | times,
    waited=st.just(0.0) | times,
    deaths=st.integers(0, 999),
    redrives=st.integers(0, 999),
    redrive=st.none() | st.tuples(st.text(), st.text()),
    key=st.none() | st.text(min_size=1),
    correlation_id=st.none() | st.text(min_size=1),
    history=st.lists(st.tuples(times, st.text(), st.text()), max_size=HISTORY_MAX).map(tuple),
)


@given(raw_headers)
def test_reading_never_raises_and_always_gives_what_it_promises(raw: Any) -> None:
    """Whatever a foreign producer put there; what was read can be written and read again."""
    for headers in (raw, {HEADER: raw}, None):
        read = Marks.read(headers)
        for moment in (read.published, read.first_published, read.first_failed):
            assert moment is None or isinstance(moment, float)
        assert isinstance(read.waited, float)
        assert type(read.deaths) is int
        assert read.deaths >= 0
        assert type(read.redrives) is int
        assert read.redrive is None or [type(part) for part in read.redrive] == [str, str]
        assert len(read.history) <= HISTORY_MAX
        assert deaths_in(headers) == read.deaths
        assert not is_redriven(headers) or isinstance(headers, dict)
        assert read.redrive is None or is_redriven(headers)
        again = Marks.read({HEADER: json.loads(json.dumps(read.header(attempt=1)))})
        assert again == read


@given(marks)
def test_what_is_written_is_read(written: Marks) -> None:
    """Through JSON, as it travels."""
    assert Marks.read({HEADER: json.loads(json.dumps(written.header()))}) == written


def test_what_says_nothing_is_left_out() -> None:
    """The header is in every message, so it is short."""
    assert Marks(published=1.0, first_published=1.0).header() == {"v": 1, "published": 1.0, "first_published": 1.0}


@pytest.mark.parametrize("wrong", [True, -1, 10**6, 2.5, "3", None, [3]])
def test_counts_that_are_none(wrong: Any) -> None:
    """A damaged count is no reason to call a message poison."""
    assert Marks.read({HEADER: {"deaths": wrong, "redrives": wrong}}) == Marks()


@pytest.mark.parametrize("wrong", [True, "now", float("nan"), float("inf"), 10**400, [1]])
def test_times_that_are_none(wrong: Any) -> None:
    assert Marks.read({HEADER: {"published": wrong, "first_published": wrong, "waited": wrong}}) == Marks()


def test_failures_add_up() -> None:
    """The first failure is kept, the history is the newest ones, and the old marks are not changed."""
    before = Marks(published=1.0)
    after = before
    for number in range(HISTORY_MAX + 5):
        after = after.failed(at=float(number), worker="w", error=f"E{number}")
    assert before == Marks(published=1.0)
    assert after.first_failed == 0.0
    assert [entry[2] for entry in after.history] == [f"E{number}" for number in range(5, HISTORY_MAX + 5)]
