"""When a worker may keep its leases, and when it has to reconnect or end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.transport.policy import (
    GIVE_UP,
    RENEWALS,
    STALLED,
    WEDGED_LEASES,
    Reception,
    judge_reception,
    may_renew,
)

moments = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("silence", "working", "answer"),
    [
        (0.0, False, True),
        (30.0, False, True),
        (89.9, False, True),
        (90.0, False, False),
        (1e6, False, False),
        (90.0, True, True),
        (1e6, True, True),
    ],
)
def test_renewing_stops_when_a_worker_is_wedged(silence: float, working: bool, answer: bool) -> None:
    """After three leases without a turn of its loop, unless a task runs that may."""
    assert may_renew(silence=silence, lease=30.0, working=working) is answer


def test_renewing_outlives_a_blocked_loop() -> None:
    """A loop that misses a few turns loses nothing: several renewals come before a lease ends or a loop is wedged."""
    assert RENEWALS >= 3
    assert WEDGED_LEASES > 1


def reception(*, idle: float = STALLED + 1, waiting: int = 5, hungry: bool = True, busy: bool = False) -> Reception:
    return Reception(idle=idle, waiting=waiting, hungry=hungry, busy=busy)


@pytest.mark.parametrize(
    "seen",
    [
        reception(idle=0),
        reception(idle=STALLED - 0.1),
        reception(idle=1e6, waiting=0),
        reception(idle=1e6, hungry=False),
        reception(idle=1e6, busy=True),
    ],
    ids=["received just now", "received lately", "empty queue", "no credit", "solo task"],
)
def test_a_quiet_worker_is_fine(seen: Reception) -> None:
    """There is nothing to receive, or it cannot receive now."""
    assert judge_reception(seen) == "fine"


def test_a_stuck_worker_reconnects_then_ends() -> None:
    assert judge_reception(reception(idle=STALLED)) == "reconnect"
    assert judge_reception(reception(idle=STALLED + GIVE_UP - 0.1)) == "reconnect"
    assert judge_reception(reception(idle=STALLED + GIVE_UP)) == "exit"


@given(idle=moments, longer=moments, waiting=st.integers(0, 9), hungry=st.booleans(), busy=st.booleans())
def test_it_only_gets_worse(idle: float, longer: float, waiting: int, hungry: bool, busy: bool) -> None:
    """With time no verdict becomes milder, and none comes before its time."""
    order = ["fine", "reconnect", "exit"]
    first, second = (
        order.index(judge_reception(Reception(idle=one, waiting=waiting, hungry=hungry, busy=busy)))
        for one in (idle, idle + longer)
    )
    assert first <= second
    assert first == 0 or idle >= STALLED
