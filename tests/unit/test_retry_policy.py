"""What the retry policy decides. The clock and the dice are arguments: nothing here waits."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_hardened.errors import ConfigurationError
from celery_hardened.retry.policy import GiveUp, RetryIn, RetryPolicy, Verdict, bound, decide, horizon, next_delay
from celery_hardened.settings import Settings

NOW = 1_700_000_000.0


def lowest(low: float, _high: float) -> float:
    return low


def highest(_low: float, high: float) -> float:
    return high


def never(low: float, high: float) -> float:
    raise AssertionError(f"the dice were asked for a number between {low} and {high}")


def policy(**fields: Any) -> RetryPolicy:
    given_ = {
        "max_retries": 10,
        "backoff": 1.0,
        "backoff_max": 600.0,
        "jitter": True,
        "default_delay": 180.0,
        "floor": 0.1,
        "horizon": None,
        "retry_after_max": 3600.0,
    }
    return RetryPolicy(**{**given_, **fields})


def verdict(of: RetryPolicy | None = None, **given_: Any) -> Verdict:
    arguments = {
        "kind": "transient",
        "retries": 0,
        "now": NOW,
        "first_published": NOW,
        "expires": None,
        "retry_after": None,
        "uniform": highest,
    }
    return decide(of or policy(), **{**arguments, **given_})


def task(**attributes: Any) -> Any:
    return SimpleNamespace(name="shop.charge", **attributes)


def read(settings_: Settings | None = None, **attributes: Any) -> RetryPolicy:
    return RetryPolicy.of(task(**attributes), settings_ or Settings())


# --- the verdict ----------------------------------------------------------------------------------


def test_permanent_failures_are_not_retried() -> None:
    """A permanent error gives up at the first attempt, with all its retries unspent."""
    assert verdict(kind="permanent", uniform=never) == GiveUp("permanent")


def test_a_time_limit_has_its_own_reason() -> None:
    assert verdict(kind="timeout", uniform=never) == GiveUp("timeout")


def test_the_count_bounds_and_draws_no_dice_afterwards() -> None:
    """With ``max_retries=3``, three retries are granted and the fourth is ``exhausted``."""
    three = policy(max_retries=3)
    assert [type(verdict(three, retries=n)) for n in range(3)] == [RetryIn] * 3
    assert verdict(three, retries=3, uniform=never) == GiveUp("exhausted")
    assert verdict(three, retries=4, uniform=never) == GiveUp("exhausted")


@pytest.mark.parametrize("limit", [0, 1, 10])
def test_a_task_that_always_fails_runs_exactly_once_more_than_its_retries(limit: int) -> None:
    """``max_retries`` counts retries, so that there are ``max_retries + 1`` attempts in all."""
    attempts = 1
    while isinstance(verdict(policy(max_retries=limit), retries=attempts - 1), RetryIn):
        attempts += 1
    assert attempts == limit + 1


def test_the_horizon_bounds_by_the_moment_the_retry_would_start() -> None:
    """A retry may start exactly at the horizon, and not a moment later."""
    hour = policy(max_retries=None, horizon=3600.0, backoff=100.0)
    assert verdict(hour, first_published=NOW - 3500) == RetryIn(100.0)
    assert verdict(hour, first_published=NOW - 3500.5) == GiveUp("expired_horizon")


def test_count_and_horizon_bound_together_and_the_first_reached_ends_it() -> None:
    both = policy(max_retries=3, horizon=3600.0)
    assert verdict(both, retries=3) == GiveUp("exhausted")
    assert verdict(both, retries=1, first_published=NOW - 3600) == GiveUp("expired_horizon")
    assert verdict(both, retries=1) == RetryIn(2.0)


def test_an_unknown_first_publish_starts_the_horizon_now() -> None:
    """A message of a plain producer carries no time; it must still end some day, and not at once."""
    hour = policy(max_retries=None, horizon=3600.0, backoff=600.0)
    assert verdict(hour, first_published=None) == RetryIn(600.0)
    assert verdict(replace(hour, horizon=500.0), first_published=None) == GiveUp("expired_horizon")


def test_a_retry_that_would_come_after_expires_is_given_up_at_once() -> None:
    """Celery would publish it, hold it and revoke it: a failure nobody hears of."""
    assert verdict(retries=5, expires=NOW + 31.9) == GiveUp("expired_horizon")
    assert verdict(retries=5, expires=NOW + 32.0) == RetryIn(32.0)


def test_an_explicit_delay_is_taken_as_it_is() -> None:
    """``self.retry(countdown=...)``: no dice, no cap, no horizon; count and ``expires`` still hold."""
    short = policy(horizon=60.0)
    assert verdict(short, delay=5000.0, uniform=never) == RetryIn(5000.0)
    assert verdict(short, delay=0.0, uniform=never) == RetryIn(0.0)
    assert verdict(short, delay=5000.0, retries=10) == GiveUp("exhausted")
    assert verdict(short, delay=5000.0, expires=NOW + 4999) == GiveUp("expired_horizon")


# --- the delay ------------------------------------------------------------------------------------


def test_the_bound_doubles_up_to_the_maximum() -> None:
    bounds = [bound(policy(), retries=n) for n in range(12)]
    assert bounds == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 600.0, 600.0]


def test_full_jitter_draws_between_zero_and_the_bound() -> None:
    asked = []

    def dice(low: float, high: float) -> float:
        asked.append((low, high))
        return high / 2

    assert next_delay(policy(), retries=4, uniform=dice) == 8.0
    assert asked == [(0.0, 16.0)]


def test_delays_are_not_whole_seconds() -> None:
    """Celery draws whole seconds, half of all first delays being none at all."""
    dice = random.Random(7).uniform
    drawn = {next_delay(policy(), retries=0, uniform=dice) for _ in range(200)}
    assert len(drawn) > 150
    assert min(drawn) == 0.1


def test_the_floor_keeps_jitter_from_meaning_at_once() -> None:
    assert next_delay(policy(floor=0.25), retries=3, uniform=lowest) == 0.25


def test_a_bound_below_the_floor_is_what_the_task_asked_for() -> None:
    assert next_delay(policy(backoff=0.02, floor=0.1), retries=0, uniform=lowest) == 0.02
    assert next_delay(policy(backoff=0.02, floor=0.1), retries=0, uniform=highest) == 0.02


def test_without_jitter_the_delay_is_the_bound() -> None:
    fixed = policy(jitter=False)
    assert [next_delay(fixed, retries=n, uniform=never) for n in (0, 1, 9, 10)] == [1.0, 2.0, 512.0, 600.0]


def test_without_backoff_every_delay_is_the_default_exactly() -> None:
    fixed = policy(backoff=None, default_delay=30.0)
    assert [next_delay(fixed, retries=n, uniform=never) for n in (0, 5, 10**6)] == [30.0] * 3
    assert next_delay(policy(backoff=None, default_delay=0.0), retries=0, uniform=never) == 0.0


def test_retry_after_is_a_lower_bound_with_the_jitter_on_top() -> None:
    """Everybody was told the same number: coming back all at once would repeat the trouble."""
    assert next_delay(policy(), retries=3, retry_after=30.0, uniform=lowest) == 30.0
    assert next_delay(policy(), retries=3, retry_after=30.0, uniform=highest) == 38.0


def test_retry_after_raises_a_fixed_delay_and_never_shortens_it() -> None:
    fixed = policy(jitter=False)
    assert next_delay(fixed, retries=3, retry_after=30.0, uniform=never) == 30.0
    assert next_delay(fixed, retries=9, retry_after=30.0, uniform=never) == 512.0
    assert next_delay(policy(backoff=None), retries=0, retry_after=200.0, uniform=never) == 200.0
    assert next_delay(policy(backoff=None), retries=0, retry_after=20.0, uniform=never) == 180.0


def test_retry_after_is_capped() -> None:
    """A server that asks for a week gets an hour."""
    assert next_delay(policy(), retries=0, retry_after=604_800.0, uniform=lowest) == 3600.0


def test_a_retry_after_beyond_the_horizon_gives_up_now() -> None:
    assert verdict(policy(horizon=60.0), retry_after=61.0) == GiveUp("expired_horizon")


POLICIES = st.builds(
    policy,
    backoff=st.floats(0.001, 100.0),
    backoff_max=st.floats(100.0, 1e6),
    jitter=st.booleans(),
    floor=st.floats(0.0, 1.0),
)


@given(of=POLICIES, retries=st.integers(0, 10**6), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_a_delay_is_always_between_floor_and_bound(of: RetryPolicy, retries: int, seed: int) -> None:
    """For any number of retries up to a million: no overflow, no zero, nothing above the maximum."""
    most = bound(of, retries=retries)
    drawn = next_delay(of, retries=retries, uniform=random.Random(seed).uniform)
    assert min(of.floor, most) <= drawn <= most <= of.backoff_max


@given(of=POLICIES, retries=st.integers(0, 10**6), step=st.integers(1, 5000))
@settings(deadline=None, max_examples=60)
def test_the_bound_never_falls(of: RetryPolicy, retries: int, step: int) -> None:
    assert bound(of, retries=retries) <= bound(of, retries=retries + step)


@given(of=POLICIES, retries=st.integers(0, 50), asked=st.floats(0.0, 1e9), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_retry_after_is_obeyed_up_to_its_cap(of: RetryPolicy, retries: int, asked: float, seed: int) -> None:
    obeyed = min(asked, of.retry_after_max)
    drawn = next_delay(of, retries=retries, retry_after=asked, uniform=random.Random(seed).uniform)
    assert obeyed <= drawn <= obeyed + bound(of, retries=retries)


@given(
    of=POLICIES,
    span=st.floats(0.001, 1e6),
    age=st.floats(0.0, 1e6),
    life=st.floats(-10.0, 1e6),
    retries=st.integers(0, 12),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=60)
def test_no_retry_is_granted_beyond_any_of_its_limits(
    of: RetryPolicy, span: float, age: float, life: float, retries: int, seed: int
) -> None:
    said = verdict(
        replace(of, horizon=span),
        retries=retries,
        first_published=NOW - age,
        expires=NOW + life,
        uniform=random.Random(seed).uniform,
    )
    if isinstance(said, RetryIn):
        assert retries < 10
        assert NOW + said.delay <= min(NOW - age + span, NOW + life)


# --- the longest time until a dead letter ---------------------------------------------------------


def test_the_horizon_of_the_defaults_is_the_sum_of_their_bounds() -> None:
    assert horizon(read()) == sum(2.0**n for n in range(10)) == 1023.0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_retries": 0}, 0.0),
        ({"max_retries": 12}, 1023.0 + 600 + 600),
        ({"max_retries": 10**9}, 1023.0 + 600.0 * (10**9 - 10)),
        ({"backoff": None, "default_delay": 30.0}, 300.0),
        ({"horizon": 100.0}, 100.0),
        ({"horizon": 5000.0}, 1023.0),
        ({"max_retries": None, "horizon": 86_400.0}, 86_400.0),
        ({"max_retries": None}, math.inf),
    ],
)
def test_the_horizon_is_the_first_of_count_and_time(fields: dict[str, Any], expected: float) -> None:
    assert horizon(policy(**fields)) == expected


@given(of=POLICIES, limit=st.integers(0, 60), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_no_task_waits_longer_than_the_horizon_says(of: RetryPolicy, limit: int, seed: int) -> None:
    of = replace(of, max_retries=limit)
    dice = random.Random(seed).uniform
    waited = sum(next_delay(of, retries=n, uniform=dice) for n in range(limit))
    assert waited <= horizon(of) * (1 + 1e-9)


# --- reading a task -------------------------------------------------------------------------------


def test_a_task_that_says_nothing_gets_the_settings() -> None:
    assert read() == policy()
    own = Settings(
        max_retries=4, retry_backoff=2.0, retry_backoff_max=50.0, retry_floor=0.5, retry_for=90.0, retry_after_max=7.0
    )
    assert read(own) == policy(
        max_retries=4, backoff=2.0, backoff_max=50.0, floor=0.5, horizon=90.0, retry_after_max=7.0
    )


@pytest.mark.parametrize(
    ("attributes", "fields"),
    [
        ({"retry_backoff": True}, {"backoff": 1.0}),
        ({"retry_backoff": 5}, {"backoff": 5.0}),
        ({"retry_backoff": 0.5}, {"backoff": 0.5}),
        ({"retry_backoff": False}, {"backoff": None}),
        ({"retry_backoff": 0}, {"backoff": None}),
        ({"retry_backoff": None}, {"backoff": 1.0}),
        ({"retry_backoff": False, "default_retry_delay": 20}, {"backoff": None, "default_delay": 20.0}),
        ({"retry_backoff": 700, "retry_backoff_max": 7200}, {"backoff": 700.0, "backoff_max": 7200.0}),
        ({"retry_backoff_max": 0.5}, {"backoff": 0.5, "backoff_max": 0.5}),
        ({"retry_jitter": False}, {"jitter": False}),
        ({"max_retries": 0}, {"max_retries": 0}),
        ({"max_retries": 3, "retry_kwargs": {"max_retries": 5}}, {"max_retries": 5}),
        ({"max_retries": 3, "retry_kwargs": {"max_retries": None}}, {"max_retries": 3}),
        ({"retry_kwargs": {"max_retries": 0}}, {"max_retries": 0}),
        ({"retry_kwargs": {"countdown": 7}}, {"backoff": None, "default_delay": 7.0}),
        (
            {"retry_kwargs": {"max_retries": 5, "countdown": 7}, "retry_backoff": True},
            {"max_retries": 5, "backoff": 1.0, "default_delay": 7.0},
        ),
        ({"retry_for": timedelta(hours=2)}, {"max_retries": None, "horizon": 7200.0}),
        ({"retry_for": 60, "max_retries": 3}, {"max_retries": 3, "horizon": 60.0}),
        ({"retry_for": 60, "max_retries": None}, {"max_retries": None, "horizon": 60.0}),
        ({"autoretry_for": (KeyError,)}, {"autoretry_for": (KeyError,)}),
        ({"autoretry_for": [KeyError]}, {"autoretry_for": (KeyError,)}),
        ({"autoretry_for": None}, {}),
        ({"dont_autoretry_for": (KeyError, TypeError)}, {"dont_autoretry_for": (KeyError, TypeError)}),
    ],
    ids=str,
)
def test_celerys_attributes_mean_what_they_mean_in_celery(attributes: dict[str, Any], fields: dict[str, Any]) -> None:
    assert read(**attributes) == policy(**fields)


def test_explicit_and_automatic_retries_wait_by_one_policy() -> None:
    """In Celery an explicit ``retry()`` ignores ``retry_backoff`` and waits 180 s."""
    of = read(retry_backoff=5)
    assert verdict(of, retries=2, uniform=highest) == RetryIn(next_delay(of, retries=2, uniform=highest)) == RetryIn(20)


def test_for_ever_needs_a_horizon() -> None:
    """``max_retries=None`` is Celery's "for ever", and that is refused unless time bounds it."""
    with pytest.raises(ConfigurationError, match=r"task 'shop.charge': max_retries is None.*Set retry_for"):
        read(max_retries=None)
    assert read(Settings(retry_for=60.0), max_retries=None).horizon == 60.0


def test_a_base_above_the_cap_is_refused() -> None:
    """``retry_backoff=3600`` under the default maximum of 600 s would silently be 600 s for ever."""
    with pytest.raises(
        ConfigurationError, match=r"task 'shop.charge': retry_backoff is 3600 s and retry_backoff_max only 600 s"
    ):
        read(retry_backoff=3600)
    assert read(retry_backoff=3600, retry_backoff_max=7200).backoff == 3600.0


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"max_retries": -1}, "max_retries is -1; it must be a number of at least 0"),
        ({"max_retries": 2.5}, "max_retries is 2.5; it must be a whole number"),
        ({"max_retries": True}, "max_retries is True"),
        ({"max_retries": "5"}, "max_retries is '5'"),
        ({"retry_backoff": -1}, "retry_backoff is -1; it must be a number above 0"),
        ({"retry_backoff": "1"}, "retry_backoff is '1'"),
        ({"retry_backoff": math.nan}, "retry_backoff is nan"),
        ({"retry_backoff_max": 0}, "it must be a number above 0"),
        ({"retry_backoff_max": "600"}, "retry_backoff_max is '600'"),
        ({"retry_for": timedelta(0)}, "retry_for is 0.0; it must be a number above 0"),
        ({"retry_for": math.inf}, "retry_for is inf"),
        ({"default_retry_delay": -5}, "default_retry_delay is -5"),
        ({"retry_kwargs": (5,)}, "retry_kwargs is (5,); it must be a dict"),
        ({"autoretry_for": KeyError}, "it must be a tuple of exception classes: add a comma"),
        ({"autoretry_for": ("KeyError",)}, "autoretry_for is ('KeyError',)"),
        ({"dont_autoretry_for": (int,)}, "dont_autoretry_for is (<class 'int'>,)"),
    ],
    ids=str,
)
def test_nonsense_is_refused_with_the_name_of_the_task(attributes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(**attributes)
    assert str(refused.value).startswith("task 'shop.charge': ")
    assert sentence in str(refused.value)
