"""What is kept of a schedule, as text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.beat.record import Record, latest_slot

FULL = Record(
    cursor=1_764_547_200.5,
    anchor=1_764_540_000.0,
    mark='crontab "0 2 * * *" Zürich|-inf|inf|0',
    fired=12,
    passed={"skipped": 3, "coalesced": 1},
    last_slot=1_764_547_200.5,
    last_fired=1_764_547_200.731,
    buffered=1_764_547_140.0,
    buffered_missed=2,
    pending=1_764_547_080.0,
    pending_missed=4,
    pending_after=1_764_547_020.0,
    done=True,
    newer={"zz": [1, {"b": None, "a": 1.5}]},
)
FULL_TEXT = (
    r'{"v":1,"cursor":1764547200.5,"anchor":1764540000.0,"mark":"crontab \"0 2 * * *\" Z\u00fcrich|-inf|inf|0",'
    '"fired":12,"passed":{"coalesced":1,"skipped":3},"last_slot":1764547200.5,"last_fired":1764547200.731,'
    '"buffered":1764547140.0,"buffered_missed":2,"pending":1764547080.0,"pending_missed":4,'
    '"pending_after":1764547020.0,"done":true,"zz":[1,{"a":1.5,"b":null}]}'
)

instants = st.integers(-(10**13), 10**14).map(lambda ms: ms / 1000)
records = st.builds(
    Record,
    cursor=instants,
    anchor=instants,
    mark=st.text(),
    fired=st.integers(0, 10**9),
    passed=st.dictionaries(st.sampled_from(["coalesced", "expired", "paused"]), st.integers(1, 10**9)),
    last_slot=st.none() | instants,
    last_fired=st.none() | instants,
    buffered=st.none() | instants,
    buffered_missed=st.integers(0, 9),
    pending=st.none() | instants,
    pending_missed=st.integers(0, 9),
    pending_after=st.none() | instants,
    done=st.booleans(),
    newer=st.dictionaries(st.from_regex(r"\An_[a-z]{1,5}\Z"), st.none() | st.integers() | st.lists(st.text())),
)


def test_the_text_never_changes() -> None:
    """Redis compares it whole, and beats of other releases have written it."""
    assert FULL.text() == FULL_TEXT
    assert Record(cursor=0.0, anchor=0.0, mark="m").text() == '{"v":1,"cursor":0.0,"anchor":0.0,"mark":"m"}'
    assert Record.parse(FULL_TEXT) == Record.parse(FULL_TEXT.encode()) == FULL


@given(records)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    """Its text is JSON, it means the same record, and that has the same text again."""
    text = record.text()
    assert json.loads(text)["v"] == 1
    assert Record.parse(text) == record
    assert Record.parse(text).text() == text


def test_fields_of_a_newer_release_are_kept() -> None:
    """Beats of two releases may take turns: the older one loses nothing that it does not know."""
    text = '{"v":1,"cursor":1.0,"anchor":0.0,"mark":"m","burst":{"left":3}}'
    assert Record.parse(text).newer == {"burst": {"left": 3}}
    assert Record.parse(text).text() == text


def changed(**fields: Any) -> str:
    return json.dumps({"v": 1, "cursor": 1.0, "anchor": 0.0, "mark": "m", **fields})


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "{}", "1", '"x"', "{", FULL_TEXT[:-1], FULL_TEXT + "}", "[" * 100_000, b"\xff",
        '{"v":1,"cursor":1.0,"anchor":0.0}',
        *(
            changed(**fields)
            for fields in (
                {"v": 2}, {"v": "1"}, {"v": True}, {"v": None},
                {"cursor": None}, {"cursor": "1"}, {"cursor": float("nan")}, {"cursor": float("inf")}, {"cursor": True},
                {"anchor": 1e300}, {"mark": 1}, {"fired": -1}, {"fired": 1.0}, {"fired": None}, {"passed": [1]},
                {"passed": {"expired": -1}}, {"passed": {"expired": "1"}}, {"last_slot": "1"}, {"last_fired": []},
                {"buffered": float("-inf")}, {"buffered_missed": True}, {"pending": {}}, {"pending_missed": -1},
                {"pending_after": "x"}, {"done": 1},
            )
        ),
    ],
)  # fmt: skip
def test_damaged_text_is_refused(text: str | bytes) -> None:
    """With one kind of error, before anybody computes with it; the message quotes no text."""
    with pytest.raises(ValueError, match="the record of a schedule is"):
        Record.parse(text)


def test_the_latest_slot_of_many() -> None:
    """What earlier leaders have fired tells a new leader's clock where to begin, and nothing else does."""
    fired = Record(cursor=5.0, anchor=0.0, mark='"last_slot":999}', last_slot=4.0, last_fired=5.0)
    later = replace(fired, last_slot=1795998287.269)
    assert latest_slot([]) is None
    assert latest_slot([Record(cursor=5.0, anchor=0.0, mark='"last_slot":999}').text()]) is None
    assert latest_slot([fired.text(), later.text(), fired.text()]) == 1795998287.269
    for waits in ({"pending": 8.5, "pending_missed": 99}, {"buffered": 8.5, "buffered_missed": 99}):
        assert latest_slot([replace(fired, **waits).text(), fired.text()]) == 8.5
