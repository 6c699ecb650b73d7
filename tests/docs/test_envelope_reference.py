"""``docs/reference/envelope.md`` is ``letter.py`` and ``marks.py``: every field, reason, state and version."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest

from celery_hardened import EnvelopeError
from celery_hardened.dead_letter.contract import OPEN, State
from celery_hardened.dead_letter.letter import (
    ENVELOPE_VERSION,
    REASONS,
    Attempt,
    DeadLetter,
    dump,
    letter_id,
    load,
)
from celery_hardened.marks import HEADER, HISTORY_MAX, VERSION, Marks
from celery_hardened.pipeline.publish import stamped
from tests.support.pages import codes, table, text_of

PAGE = "reference/envelope.md"


def named(under: str) -> list[str]:
    return [codes(row[0])[0] for row in table(PAGE, under)]


def meaning(under: str, name: str) -> str:
    return next(row[1] for row in table(PAGE, under) if codes(row[0]) == [name])


def letter(**more: Any) -> DeadLetter:
    return DeadLetter(id="a-0-0", reason="permanent", attempts=(Attempt(1.0, "w", "ValueError"),), **more)


def test_the_envelope_has_the_fields_of_the_page() -> None:
    """In the order of the code, the version first."""
    assert named("The envelope") == ["v", *(field.name for field in fields(DeadLetter))]
    assert set(json.loads(dump(letter()))) == set(named("The envelope"))


def test_attempts_are_written_as_the_page_says() -> None:
    """Their three fields, and how many are kept."""
    said = meaning("The envelope", "attempts")
    assert codes(said) == [field.name for field in fields(Attempt)] == list(json.loads(dump(letter()))["attempts"][0])
    assert "twenty" in said
    assert HISTORY_MAX == 20


def test_reasons_and_states_are_those_of_the_code() -> None:
    """All of them, and which states are open."""
    assert tuple(named("Reasons")) == REASONS
    states = {codes(row[0])[0]: row[1] for row in table(PAGE, "States")}
    assert tuple(states) == get_args(State)
    assert {state for state, is_open in states.items() if is_open == "yes"} == set(OPEN)


def test_the_header_has_the_fields_of_the_page() -> None:
    """A header that says all it can says what the page lists, and a fresh one the three it names."""
    full = Marks(
        published=1.0, first_published=1.0, first_failed=1.0, waited=1.0, deaths=1, redrives=1, redrive=("a", "b"),
        dedup=("k", "finish"), busy_since=1.0, key="k", correlation_id="c", history=((1.0, "w", "E"),),
            slot=1.0, schedule="s", missed=1, run="schedule:s", once=True, yields=True,
    )  # fmt: skip
    assert set(full.header(attempt=1)) == set(named("The `hardened` header"))
    assert {field.name for field in fields(Marks)} == set(named("The `hardened` header")) - {"v", "attempt"}
    assert set(stamped(None, now=1.0)[HEADER]) == {"v", "published", "first_published"}


def test_versions_are_those_of_the_page() -> None:
    """Both are 1; a newer envelope is refused, an unknown field ignored, any header read."""
    assert meaning("The envelope", "v").endswith(f": {ENVELOPE_VERSION}.")
    assert meaning("The `hardened` header", "v").endswith(f": {VERSION}.")
    assert "refuses newer ones with `EnvelopeError`" in text_of(PAGE)
    envelope = json.loads(dump(letter()))
    assert load(json.dumps({**envelope, "added_later": 1}).encode()) == letter()
    with pytest.raises(EnvelopeError, match="version"):
        load(json.dumps({**envelope, "v": ENVELOPE_VERSION + 1}).encode())
    assert Marks.read({HEADER: {"v": VERSION + 1, "deaths": 2, "added_later": []}}).deaths == 2


def test_ids_are_made_as_the_page_says() -> None:
    """Task id, redrives, attempt."""
    assert "`<task id>-<redrives>-<attempt>`" in text_of(PAGE)
    assert letter_id("abc", 1, 2, "tag") == "abc-1-2"
    assert letter_id(None, 1, 2, "7", b"body").startswith("tag-7-")
