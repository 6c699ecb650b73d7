"""The policies an entry may ask for, and what is refused."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from celery_hardened import ConfigurationError
from celery_hardened.beat.policy import POLICY_KEYS, Policy

DEFAULT = Policy()


def of(**options: Any) -> Policy:
    return Policy.of(options, otherwise=DEFAULT)


def test_what_an_entry_does_not_say_is_as_in_the_settings() -> None:
    """Each key alone overrides; the others stay; keys that are no policy's are another's business."""
    settings = Policy(missed_run="run_all", catchup_window=600.0, max_catchup=7, grace=5.0, overlap="skip")
    assert Policy.of({}, otherwise=settings) == settings
    assert Policy.of({"task": "t", "mised_run": "skip"}, otherwise=settings) == settings
    assert Policy.of({"grace": 6}, otherwise=settings) == Policy(
        missed_run="run_all", catchup_window=600.0, max_catchup=7, grace=6.0, overlap="skip"
    )
    assert POLICY_KEYS == ("missed_run", "catchup_window", "max_catchup", "grace", "overlap", "jitter")


def test_durations_are_seconds_or_timedelta() -> None:
    """Both mean the same, and come out as floats."""
    policy = of(catchup_window=timedelta(hours=6), grace=timedelta(minutes=1), jitter=timedelta(milliseconds=1500))
    assert (policy.catchup_window, policy.grace, policy.jitter) == (21_600.0, 60.0, 1.5)
    assert all(type(value) is float for value in (policy.catchup_window, policy.grace, policy.jitter))


def test_no_catchup_window_is_no_limit() -> None:
    """``None`` is a value of its own: it is not the same as saying nothing."""
    assert of(catchup_window=None).catchup_window is None
    assert of(catchup_window=None, jitter=1e6).jitter == 1e6


@pytest.mark.parametrize("missed_run", ["run_once", "skip", "run_all"])
def test_max_catchup_may_be_said_with_every_missed_run(missed_run: str) -> None:
    """It has no effect but with run_all, and says nothing wrong."""
    assert of(missed_run=missed_run, max_catchup=3).max_catchup == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"missed_run": "runonce"}, "missed_run is 'runonce'; it must be one of 'run_once', 'skip', 'run_all'. Di"),
        ({"missed_run": "run_al"}, "Did you mean 'run_all'?"),
        ({"missed_run": None}, "missed_run is None"),
        ({"overlap": "cancel"}, "Did you mean 'cancel_other'?"),
        ({"overlap": ["skip"]}, "overlap is ['skip']"),
        ({"grace": -1}, "grace is -1; it must be a number of seconds or a timedelta, at least 0."),
        ({"grace": math.nan}, "grace is nan"),
        ({"grace": True}, "grace is True"),
        ({"grace": "30"}, "grace is '30'"),
        ({"grace": None}, "grace is None"),
        ({"jitter": timedelta(seconds=-1)}, "at least 0"),
        ({"catchup_window": math.inf}, "a number of seconds or a timedelta, at least 0, or None for no limit."),
        ({"catchup_window": False}, "catchup_window is False"),
        ({"max_catchup": 0}, "max_catchup is 0; it must be a whole number, at least 1."),
        ({"max_catchup": True}, "max_catchup is True"),
        ({"max_catchup": 3.0}, "max_catchup is 3.0"),
    ],
)  # fmt: skip
def test_malformed_values_are_refused(options: dict[str, Any], sentence: str) -> None:
    """The message has the value, what it may be, and a guess where one is near."""
    with pytest.raises(ConfigurationError) as caught:
        of(**options)
    assert sentence in str(caught.value)


def test_a_literal_that_is_near_to_nothing_is_not_guessed_at() -> None:
    """A guess that is wrong is worse than none."""
    with pytest.raises(ConfigurationError) as caught:
        of(overlap="x")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "numbers", "remedy"),
    [
        ({"catchup_window": 10}, ["catchup_window (10 s)", "grace (30 s, from hardened_beat_grace)"], "Raise catchup"),
        (
            {"grace": 90_000},
            ["catchup_window (86400 s, from hardened_beat_catchup_window)", "(90000 s)"],
            "lower grace",
        ),
        ({"jitter": 90_000}, ["jitter (90000 s)", "catchup_window (86400 s, from"], "Lower jitter"),
        ({"missed_run": "skip", "grace": 0}, ["grace (0 s)"], "Raise grace to 1 s"),
        ({"catchup_window": 0, "grace": 0}, ["catchup_window (0 s)"], "Raise catchup_window to 1 s"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], numbers: list[str], remedy: str) -> None:
    """With both numbers, where each comes from, and what to change."""
    with pytest.raises(ConfigurationError) as caught:
        of(**options)
    assert all(number in str(caught.value) for number in numbers)
    assert remedy in str(caught.value)


def test_a_window_as_long_as_the_grace_is_no_contradiction() -> None:
    """Nothing is made up for then, and everything is on time or expired."""
    assert of(catchup_window=30, grace=30).catchup_window == 30.0
    assert of(missed_run="skip", catchup_window=1, grace=1).grace == 1.0
