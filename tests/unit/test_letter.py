"""The envelope: written and read back, whatever the message was."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.dead_letter.letter import (
    ENVELOPE_VERSION,
    REASONS,
    Attempt,
    DeadLetter,
    dump,
    fingerprint,
    letter_id,
    load,
)
from celery_hardened.errors import EnvelopeError

texts = st.text(st.characters(), max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
letters = st.builds(
    DeadLetter,
    id=texts,
    reason=st.sampled_from(REASONS),
    task=st.none() | texts,
    body=st.binary(max_size=100),
    body_compressed=st.booleans(),
    headers=st.dictionaries(texts, plain, max_size=4),
    properties=st.dictionaries(texts, plain, max_size=4),
    error_message=texts,
    traceback=texts,
    attempts=st.lists(st.builds(Attempt, at=st.floats(0, 2e9), worker=texts, error=texts), max_size=3).map(tuple),
    first_published=st.none() | st.floats(0, 2e9),
    log_args=st.dictionaries(texts, plain, max_size=3),
    max_age=st.none() | st.floats(1, 1e7),
)


@given(letters)
def test_an_envelope_gives_back_the_letter(letter: DeadLetter) -> None:
    """Every field, byte for byte, lone surrogates and all; the envelope itself is ASCII."""
    envelope = dump(letter)
    assert load(envelope) == letter
    assert envelope.isascii()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"\xff\x00", "\\xff\x00"),
        (datetime(2026, 1, 2, tzinfo=timezone.utc), "2026-01-02 00:00:00+00:00"),
        (Decimal("1.5"), "1.5"),
        ({b"key": 1}, "{b'key': 1}"),
        ((1, 2), [1, 2]),
    ],
)
def test_a_header_that_json_cannot_hold_is_kept_as_text(value: Any, kept: Any) -> None:
    """AMQP tables carry dates, decimals and bytes; the letter must be written all the same."""
    read = load(dump(DeadLetter(id="x", reason="malformed", headers={"odd": value, "good": 1})))
    assert read.headers == {"odd": kept, "good": 1}


def test_a_header_nested_too_deeply_is_given_up_alone() -> None:
    """One absurd header does not lose the message."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    read = load(dump(DeadLetter(id="x", reason="malformed", body=b"body", headers={"deep": deep, "good": 1})))
    assert read.body == b"body"
    assert read.headers["good"] == 1
    assert "nested too deeply" in read.headers["deep"]


def test_a_newer_version_is_refused() -> None:
    """A letter written by a later release may mean something else; it is not guessed at."""
    data = json.loads(dump(DeadLetter(id="x", reason="lost"))) | {"v": ENVELOPE_VERSION + 1}
    with pytest.raises(EnvelopeError, match=rf"version is {ENVELOPE_VERSION + 1} and this release reads 1 to"):
        load(json.dumps(data).encode())


def test_fields_of_the_same_version_that_are_not_known_are_ignored() -> None:
    """A release that only adds a field need not raise the version."""
    data = json.loads(dump(DeadLetter(id="x", reason="lost"))) | {"new": 1}
    assert load(json.dumps(data).encode()).id == "x"


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"nonsense",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"v":1}',
        b'{"v":"1","id":"x","reason":"lost"}',
        b'{"v":0,"id":"x","reason":"lost"}',
        b'{"v":1,"id":"x","reason":"boredom"}',
        b'{"v":1,"reason":"lost"}',
        b'{"v":1,"id":"x","reason":"lost","body":"%%%"}',
        b'{"v":1,"id":"x","reason":"lost","body":5}',
        b'{"v":1,"id":"x","reason":"lost","attempts":[{"when":1}]}',
        b'{"v":1,"id":"x","reason":"lost","attempts":5}',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_envelope_are_refused(envelope: bytes) -> None:
    """One error for every kind of damage."""
    with pytest.raises(EnvelopeError):
        load(envelope)


# --- names ---------------------------------------------------------------------------------------


def test_a_failure_has_one_id_however_often_it_is_written() -> None:
    """Task, redrive and attempt name it; what changes between deliveries does not."""
    assert letter_id("t", 1, 2, "tag-a", b"x") == letter_id("t", 1, 2, "tag-b", b"y") == "t-1-2"
    assert (
        len({letter_id("t", 0, 0, ""), letter_id("t", 1, 0, ""), letter_id("t", 0, 1, ""), letter_id("u", 0, 0, "")})
        == 4
    )


def test_messages_without_an_id_are_told_apart_by_tag_and_body() -> None:
    """AMQP counts delivery tags anew on every channel; two different messages with tag 1 are two letters."""
    assert letter_id(None, 0, 0, "1", b"x") == letter_id("", 0, 0, "1", b"x")
    assert (
        len({letter_id(None, 0, 0, "1", b"x"), letter_id(None, 0, 0, "1", b"y"), letter_id(None, 0, 0, "2", b"x")}) == 3
    )


def test_a_foreign_task_id_of_any_length_gives_a_short_id() -> None:
    """Long ids are cut and still told apart."""
    one, other = letter_id("x" * 100_000, 0, 0, ""), letter_id("x" * 99_999 + "y", 0, 0, "")
    assert one != other
    assert len(one) < 150


def test_a_fingerprint_is_the_cause_not_the_case() -> None:
    """Numbers, ids, addresses and quoted values in the message do not matter; all else does."""

    def of(message: str, task: str = "t", error: str = "ValueError", place: str = "a.py:1") -> str:
        return fingerprint(task, error, message, place)

    same = [
        "invoice 17 of 'ann' at 0x7f00 (1f0c4a52-7d55-4f9b-9d0e-0c8f3a1b2c3d)",
        "invoice 4711 of 'bob' at 0xdead (9b2e77aa-0000-4f9b-9d0e-ffffffffffff)",
    ]
    assert of(same[0]) == of(same[1])
    others = {
        of(same[0]),
        of("order 17"),
        of(same[0], task="u"),
        of(same[0], error="KeyError"),
        of(same[0], place="a.py:2"),
    }
    assert len(others) == 5
    assert fingerprint(None, "E", "\ud800", "") == fingerprint(None, "E", "\ud800", "")


def test_a_fingerprint_stays_what_it_was() -> None:
    """Stored letters are grouped by it, so it must not change from one release to the next."""
    assert fingerprint("shop.charge", "builtins.ValueError", "no invoice 17", "shop.py:12") == "28b334d8db19"
