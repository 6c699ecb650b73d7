"""What a checkpoint holds as text, and which rows of a loop are left."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.checkpoint.record import Record
from celery_hardened.checkpoint.rows import rest_of


def kept(state: Any, **loops: int) -> Record:
    record = Record(loops=loops)
    record.keep(state)
    return record


# --- the record ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        None,
        False,
        0,
        "",
        [],
        {"cursor": "é\u2028", "seen": [1, 2.5, None]},
        uuid.UUID(int=7),
        Decimal("1.10"),
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc),
    ],
)
def test_a_state_comes_back(state: Any) -> None:
    """What kombu's JSON takes, it brings back; None and empty states are states."""
    found = Record.read(kept(state, rows=3).dump())
    assert found.value("default") == state
    assert found.loops == {"rows": 3}
    assert found.dump() == kept(state, rows=3).dump()


def test_a_tuple_comes_back_as_a_list() -> None:
    """Also to the run that saved it: what works in the first run works in the next."""
    assert kept((1, 2)).value(None) == [1, 2]


def test_what_was_never_saved_is_the_default() -> None:
    assert Record.read(None).value("default") == "default"
    assert Record.read(Record(loops={"rows": 1}).dump()).value("default") == "default"


def test_what_becomes_of_the_object_later_is_not_saved() -> None:
    """A position is saved every few seconds, with the state as it was given to save()."""
    state = {"sums": [1]}
    record = kept(state)
    state["sums"].append(2)
    assert record.value(None) == {"sums": [1]}
    record.value(None)["sums"].append(3)
    assert Record.read(record.dump()).value(None) == {"sums": [1]}


class Odd:
    """Nothing for JSON."""


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("state", [Odd(), circle(), {(1, 2): 3}, [{"deep": Odd()}]])
def test_a_state_that_is_no_json(state: Any) -> None:
    """It is refused in words that do not show it, and the one before stands."""
    record = kept("before")
    with pytest.raises(ValueError, match="no JSON") as caught:
        record.keep(state)
    assert " at 0x" not in str(caught.value)
    assert record.value(None) == "before"


def test_a_lone_surrogate_is_kept() -> None:
    """As in a file name that is no UTF-8."""
    assert Record.read(kept("\ud800").dump()).value(None) == "\ud800"


def test_it_is_versioned_json() -> None:
    """Documented, so that a cursor can be read by hand."""
    assert json.loads(kept({"page": 3}, rows=7).dump()) == {"v": 1, "state": {"page": 3}, "loops": {"rows": 7}}


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "of version None"),
        (b'{"v":2,"loops":{}}', "of version 2"),
        (b'{"v":1}', "how many rows"),
        (b'{"v":1,"loops":{"rows":-1}}', "how many rows"),
        (b'{"v":1,"loops":{"rows":"7"}}', "how many rows"),
        (b'{"v":1,"loops":{"rows":true}}', "how many rows"),
        (b'{"v":1,"loops":{},"inside":["rows"]}', "inside of which"),
        (b'{"v":1,"loops":{},"inside":{"rows":1}}', "inside of which"),
    ],
)
def test_a_record_that_cannot_be_read(raw: bytes, problem: str) -> None:
    """It is never taken for an empty one: the work would silently start again."""
    with pytest.raises(ValueError, match=problem):
        Record.read(raw)


# --- rows -------------------------------------------------------------------------------------------------------


class Pages:
    """Iterable, and no sequence."""

    def __iter__(self) -> Any:
        return iter("abcde")


@pytest.mark.parametrize("rows", ["abcde", list("abcde"), tuple("abcde"), Pages(), dict.fromkeys("abcde")])
@given(done=st.integers(0, 7))
def test_the_rest_of_rows(rows: Iterable[str], done: int) -> None:
    """What is done is left out, also if there are fewer rows by now."""
    rest, total = rest_of(rows, done)
    assert list(rest) == list("abcde")[done:]
    assert total == (5 if isinstance(rows, (str, list, tuple)) else None)


def test_the_rest_of_a_generator() -> None:
    rest, total = rest_of((n * n for n in range(5)), 3)
    assert (list(rest), total) == ([9, 16], None)


def test_a_range_is_not_walked() -> None:
    rest, total = rest_of(range(10**12), 10**12 - 2)
    assert (list(rest), total) == ([10**12 - 2, 10**12 - 1], 10**12)


@pytest.mark.parametrize("rows", [{1, 2}, frozenset((1, 2))])
def test_a_set_has_no_order(rows: Any) -> None:
    """The third row of one process is another one's first."""
    with pytest.raises(ValueError, match="sorted"):
        rest_of(rows, 0)
