"""When a message that killed its worker is started again. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.poison.contract import work_id
from celery_hardened.poison.policy import Record, death_delay, is_suspect, judge

counts = st.integers(0, 50)
records = st.builds(Record, certain=counts, presumed=st.integers(0, 1), unclosed=counts, alone=st.booleans())
limits = st.integers(1, 20)


@pytest.mark.parametrize(
    ("record", "limit", "verdict"),
    [
        (Record(), 1, "run"),
        (Record(), 3, "run"),
        # Deaths that the parent saw convict on their own.
        (Record(certain=2), 3, "run"),
        (Record(certain=3), 3, "poison"),
        (Record(certain=4), 3, "poison"),
        (Record(certain=1), 1, "poison"),
        # Deaths of the whole worker do not: an innocent may have run beside the culprit.
        (Record(unclosed=2), 3, "run"),
        (Record(unclosed=3), 3, "alone"),
        (Record(unclosed=30), 3, "alone"),
        (Record(presumed=1), 3, "run"),
        (Record(presumed=1), 1, "alone"),
        (Record(presumed=1, unclosed=2), 3, "alone"),
        (Record(certain=2, unclosed=1), 3, "alone"),
        (Record(certain=2, presumed=1), 3, "alone"),
        # Unless it had the worker to itself.
        (Record(unclosed=1, alone=True), 3, "poison"),
        (Record(presumed=1, unclosed=3, alone=True), 3, "poison"),
    ],
)
def test_judge(record: Record, limit: int, verdict: str) -> None:
    assert judge(record, limit=limit) == verdict


@given(records, limits)
def test_only_certainty_convicts(record: Record, limit: int) -> None:
    """Poison means as many certain deaths as allowed, or one alone in its worker; below the limit nothing happens."""
    verdict = judge(record, limit=limit)
    assert (verdict == "poison") == (record.certain >= limit or record.alone)
    assert verdict != "run" or record.deaths < limit
    assert record.deaths == record.certain + record.presumed + record.unclosed


@given(records, limits)
def test_one_more_death_never_helps(record: Record, limit: int) -> None:
    """Verdicts only get harder."""
    order = ["run", "alone", "poison"]
    before = order.index(judge(record, limit=limit))
    for more in (
        Record(certain=record.certain + 1, presumed=record.presumed, unclosed=record.unclosed, alone=record.alone),
        Record(certain=record.certain, presumed=record.presumed, unclosed=record.unclosed + 1, alone=record.alone),
        Record(certain=record.certain, presumed=1, unclosed=record.unclosed, alone=True),
    ):
        assert order.index(judge(more, limit=limit)) >= before


def test_delays_double_up_to_the_longest() -> None:
    """So that a killer is no hot loop, and nobody waits for days."""
    delays = [death_delay(deaths, base=1.0, longest=60.0) for deaths in range(9)]
    assert delays == [1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@given(st.integers(-5, 10**6), st.floats(0, 3600), st.floats(0, 86_400))
def test_delays_are_bounded_whatever_the_count(deaths: int, base: float, longest: float) -> None:
    assert 0 <= death_delay(deaths, base=base, longest=longest) <= longest


@pytest.mark.parametrize(
    ("redelivered", "deaths", "early_ack", "suspect"),
    [
        (False, 0, False, False),  # a first delivery costs no round trip
        (True, 0, False, True),
        (False, 1, False, True),
        (True, 2, False, True),
        (True, 0, True, False),  # acked before it ran, it did not come back for having run
        (False, 1, True, False),
    ],
)
def test_suspects(redelivered: bool, deaths: int, early_ack: bool, suspect: bool) -> None:
    assert is_suspect(redelivered=redelivered, deaths=deaths, early_ack=early_ack) is suspect


# --- the name of a piece of work ----------------------------------------------------------------------------


def name(**changes: object) -> str:
    given_ = {"task": "charge", "root_id": "r1", "key": None, "body": b"[]"}
    return work_id(**{**given_, **changes})  # type: ignore[arg-type]


def test_work_outlives_the_task_id() -> None:
    """A killer that publishes itself again under a new id, from the same root, is the same work."""
    assert name() == name()
    assert name(body="[]") == name()


@pytest.mark.parametrize(
    "changes", [{"task": "other"}, {"root_id": "r2"}, {"root_id": None}, {"body": b"[1]"}], ids=str
)
def test_other_work_has_another_name(changes: dict[str, object]) -> None:
    """The same task with other arguments, or of another workflow, is not to blame."""
    assert name(**changes) != name()


def test_a_key_names_the_work_alone() -> None:
    """An idempotency key says what is the same work, whatever task, root and body."""
    assert name(key="k") == name(key="k", task="other", root_id="r2", body=b"x")
    assert name(key="k") != name(key="l")
    assert name(key="k") != name()


def test_parts_do_not_run_together() -> None:
    assert name(task="a", root_id="bc") != name(task="ab", root_id="c")


@given(st.text(), st.none() | st.text(), st.none() | st.text(), st.text() | st.binary())
def test_any_text_makes_a_short_name(task: str, root: str | None, key: str | None, body: str | bytes) -> None:
    """JSON may carry lone surrogates; the name is part of a Redis key."""
    for odd in ("", "\ud800"):
        found = work_id(task=task + odd, root_id=root, key=key and key + odd, body=body)
        assert len(found) == 32
        assert found.isalnum()
