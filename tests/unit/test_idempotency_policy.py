"""How long finished work is remembered, and how long a busy key is waited for."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened import ConfigurationError
from celery_hardened.idempotency.policy import Idempotent, Repetition, busy_delay, done_lifetime, eta_problem
from celery_hardened.key import BusinessKey


def charge(order: str) -> None: ...


def options(*, lifetime: float | None = None, eta: float = 0.0) -> Idempotent:
    return Idempotent(key=BusinessKey.of(charge, "order"), lifetime=lifetime, eta=eta)


def repetition(**more: float | None) -> Repetition:
    given: dict[str, float | None] = {
        "horizon": 100.0,
        "max_retries": 3,
        "time_limit": 300.0,
        "queue_retention": 5000.0,
        "lease": 30.0,
        "sweep": 5.0,
        **more,
    }
    return Repetition.of(**given)  # type: ignore[arg-type]


def test_finished_work_outlives_the_last_repetition() -> None:
    """Retry delays, attempts, the wait in the queue, the lease of a dead worker, and the longest countdown."""
    assert done_lifetime(options(), repetition(), task="shop.charge") == 100 + 3 * 300 + 5000 + 30 + 5
    assert done_lifetime(options(eta=86_400), repetition(), task="shop.charge") == 6035 + 86_400


@pytest.mark.parametrize("max_retries", [0, None])
def test_attempts_that_are_not_counted_take_no_time(max_retries: int | None) -> None:
    """None were asked for, or the horizon alone bounds them, and then it counts their time."""
    last = repetition(max_retries=max_retries, time_limit=None)
    assert done_lifetime(options(), last, task="shop.charge") == 100 + 5000 + 35


def test_a_longer_lifetime_is_taken() -> None:
    assert done_lifetime(options(lifetime=6035), repetition(), task="shop.charge") == 6035
    assert done_lifetime(options(lifetime=1e6), repetition(), task="shop.charge") == 1e6


def test_a_shorter_lifetime_is_refused_with_the_numbers() -> None:
    """The record would be gone, and a late repetition would run again."""
    with pytest.raises(ConfigurationError) as caught:
        done_lifetime(options(lifetime=3600), repetition(), task="shop.charge")
    text = str(caught.value)
    for part in ("'shop.charge'", "lifetime=3600", "6035 s", "100 s retry", "900 s attempts", "5000 s hardened_queue"):
        assert part in text


@pytest.mark.parametrize(
    ("last", "what"),
    [(repetition(horizon=math.inf), "retry delays"), (repetition(time_limit=None), "attempts")],
    ids=["endless retries", "no time limit"],
)
def test_what_never_ends_needs_a_lifetime(last: Repetition, what: str) -> None:
    """Nothing to derive one from; a given one is held to what is known."""
    with pytest.raises(ConfigurationError, match=f"nothing bounds its {what}"):
        done_lifetime(options(), last, task="shop.charge")
    assert done_lifetime(options(lifetime=1e6), last, task="shop.charge") == 1e6
    with pytest.raises(ConfigurationError, match="lifetime=5000"):
        done_lifetime(options(lifetime=5000), last, task="shop.charge")


@pytest.mark.parametrize("delay", [-5.0, 0.0, 3600.0])
def test_a_countdown_that_is_provided_for_is_no_problem(delay: float) -> None:
    assert eta_problem(options(eta=3600), delay) is None


def test_a_longer_countdown_is_named_with_both_numbers() -> None:
    """Its record was counted for a message that is due sooner."""
    assert eta_problem(options(), 0.0) is None
    text = str(eta_problem(options(eta=3600), 86_400.4))
    for part in ("86400 s", "3600 s (eta=)", "Set eta="):
        assert part in text


@given(left=st.floats(-10, 1e9), lease=st.floats(1, 3600), seed=st.integers(0, 999))
def test_a_busy_key_is_waited_for_until_its_lease_ends(left: float, lease: float, seed: int) -> None:
    """Never shorter; never much longer than a lease, whatever the store says; and spread."""
    delay = busy_delay(left, lease, random.Random(seed).uniform)
    assert min(left, lease) <= delay <= 1.1 * lease
    assert delay >= 0


def test_those_who_wait_do_not_come_back_together() -> None:
    dice = random.Random(1)
    delays = {round(busy_delay(10, 30, dice.uniform), 2) for _ in range(100)}
    assert len(delays) > 80
