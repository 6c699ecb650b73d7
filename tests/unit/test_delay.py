"""How long a message waits in Redis."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.transport.delay import THRESHOLD, seconds_until

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=timezone.utc)
MOST = 1000.0


def wait(eta: Any, **headers: Any) -> float:
    return seconds_until({"headers": {"task": "t", "eta": eta, **headers}}, most=MOST, now=NOW)


@pytest.mark.parametrize(
    ("eta", "seconds"),
    [
        ("2026-03-04T12:01:00+00:00", 60),
        ("2026-03-04T12:01:00Z", 60),
        ("2026-03-04T12:01:00.500000+00:00", 60.5),
        ("2026-03-04T14:01:00+02:00", 60),
        ("2026-03-04T07:01:00-05:00", 60),
    ],
)
def test_an_eta_is_waited_for(eta: str, seconds: float) -> None:
    """In whatever zone it was written."""
    assert wait(eta) == seconds


@pytest.mark.parametrize("seconds", [-3600, -1, 0, 0.5, THRESHOLD])
def test_what_is_due_soon_is_handed_out(seconds: float) -> None:
    """A wait that is shorter than the trip is the worker's own affair; one that is over is none."""
    assert wait((NOW + timedelta(seconds=seconds)).isoformat()) == 0


def test_what_lies_too_far_ahead_is_handed_out() -> None:
    """The worker buries it; here it would wait for years."""
    assert wait((NOW + timedelta(seconds=MOST)).isoformat()) == MOST
    assert wait((NOW + timedelta(seconds=MOST + 1)).isoformat()) == 0
    assert wait("9999-12-31T23:59:59+00:00") == 0


@pytest.mark.parametrize(
    "eta", [None, "", "soon", 5, 5.0, True, [], {}, "2026-13-99T00:00:00+00:00", "2026-03-04T12:01:00", "\x00", "Z"]
)
def test_what_cannot_be_read_is_handed_out(eta: Any) -> None:
    """Also a time without zone: which one is meant, only the app knows."""
    assert wait(eta) == 0


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"headers": None},
        {"headers": []},
        {"headers": "task eta"},
        {"headers": {"eta": "2026-03-04T12:01:00+00:00"}},
    ],
    ids=["none", "null", "list", "text", "no task"],
)
def test_other_messages_are_handed_out(payload: dict[str, Any]) -> None:
    """An ``eta`` means something on Celery's messages only."""
    assert seconds_until(payload, most=MOST, now=NOW) == 0


@given(st.one_of(st.text(), st.none(), st.integers(), st.floats(), st.lists(st.text())))
def test_no_eta_raises(eta: Any) -> None:
    """Whatever a producer wrote there."""
    assert 0 <= wait(eta) <= MOST


@given(st.datetimes(timezones=st.just(timezone.utc)))
def test_the_clock_is_read_if_none_is_given(eta: datetime) -> None:
    before = (eta - datetime.now(timezone.utc)).total_seconds()
    found = seconds_until({"headers": {"task": "t", "eta": eta.isoformat()}}, most=1e12)
    assert found == 0 or before - 60 < found <= before
