"""The ``hardened`` header: read from whatever arrives, written strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.marks import (
    HEADER,
    HISTORY_MAX,
    TEXT_MAX,
    Marks,
    deaths_in,
    has_window,
    is_once,
    is_redriven,
    is_yielding,
    published_in,
)

FIELDS = (
    "v", "published", "first_published", "first_failed", "waited", "deaths", "redrives", "redrive", "key",
    "dedup", "slot", "schedule", "missed", "run", "once", "yields", "correlation_id", "history", "attempt",
)  # fmt: skip

#: With lone surrogates, which JSON can say and nothing can encode.
odd_characters = st.characters()

#: Anything JSON can say, and more.
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(odd_characters) | st.binary(),
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
    dedup=st.none() | st.tuples(st.text(), st.text()),
    slot=st.none() | st.just(0.0) | times,
    schedule=st.none() | st.text(min_size=1),
    missed=st.integers(0, 999),
    run=st.none() | st.text(min_size=1),
    once=st.booleans(),
    yields=st.booleans(),
    correlation_id=st.none() | st.text(min_size=1),
    history=st.lists(st.tuples(times, st.text(), st.text()), max_size=HISTORY_MAX).map(tuple),
)


@given(raw_headers)
def test_reading_never_raises_and_always_gives_what_it_promises(raw: Any) -> None:
    """Whatever a foreign producer put there; what was read can be written and read again."""
    for headers in (raw, {HEADER: raw}, None):
        read = Marks.read(headers)
        assert published_in(headers) == read.published
        for moment in (read.published, read.first_published, read.first_failed, read.slot):
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
        assert has_window(headers) or not read.windows
        assert is_once(headers) or not read.once
        assert is_yielding(headers) or not read.yields
        for text in (
            read.key,
            read.correlation_id,
            read.schedule,
            read.run,
            *(read.dedup or ()),
            *(read.redrive or ()),
        ):
            assert text is None or len(text.encode()) <= 4 * TEXT_MAX
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


def test_most_messages_have_no_window() -> None:
    """What a start and an end ask, without reading all the marks."""
    assert has_window({HEADER: Marks(dedup=("k", "finish")).header()})
    assert has_window({HEADER: Marks(run="schedule:nightly").header()})
    assert not has_window({HEADER: Marks(key="k").header()})
    assert not any(has_window(headers) for headers in (None, {}, {HEADER: None}, {HEADER: ["dedup"]}, "dedup"))


def test_the_windows_of_a_message() -> None:
    """A scheduled run of a deduplicated task holds two, and its schedule's until it ends."""
    assert Marks().windows == ()
    assert Marks(dedup=("k", "start")).windows == (("k", "start"),)
    assert Marks(run="schedule:nightly").windows == (("schedule:nightly", "finish"),)
    assert Marks(dedup=("k", "start"), run="schedule:nightly").windows == (
        ("k", "start"),
        ("schedule:nightly", "finish"),
    )


def test_only_what_may_be_there_twice_is_asked_for() -> None:
    """What every start asks, without reading all the marks."""
    for asks, name in ((is_once, "once"), (is_yielding, "yields")):
        assert asks({HEADER: Marks(once=True, yields=True).header()})
        assert not asks({HEADER: Marks(slot=1.0, schedule="nightly").header()})
        assert not any(asks(headers) for headers in (None, {}, {HEADER: None}, {HEADER: [name]}, name))


@pytest.mark.parametrize("wrong", [1, "true", None, [True]])
def test_an_only_run_and_one_that_yields_are_said_as_true_and_nothing_else(wrong: Any) -> None:
    read = Marks.read({HEADER: {"once": wrong, "yields": wrong}})
    assert (read.once, read.yields) == (False, False)


@pytest.mark.parametrize("text", ["\ud800", "x\udfff", "x" * (TEXT_MAX + 1)], ids=["first half", "second half", "long"])
def test_text_that_can_be_no_key_is_not_read(text: str) -> None:
    """A forged header cannot make a store raise what nobody expects, nor carry a megabyte from place to place."""
    raw = {"key": text, "correlation_id": text, "dedup": [text, "finish"], "redrive": ["letter", text]}
    raw |= {"schedule": text, "run": text}
    assert Marks.read({HEADER: raw}) == Marks()
    longest = "x" * TEXT_MAX
    assert Marks.read({HEADER: {"key": longest}}).key == longest
