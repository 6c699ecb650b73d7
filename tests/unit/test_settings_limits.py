"""Who sets one time limit means that one: our default of the other must not contradict it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_hardened.errors import ConfigurationError
from celery_hardened.settings import Settings


@pytest.mark.parametrize(
    ("given", "soft", "hard"),
    [
        ({}, 240.0, 300.0),
        ({"hardened_time_limit": 100}, None, 100),
        ({"hardened_time_limit": 400}, 240.0, 400),
        ({"hardened_soft_time_limit": 100}, 100, 300.0),
        ({"hardened_soft_time_limit": 500}, 500, None),
        ({"hardened_time_limit": 700, "hardened_soft_time_limit": 600}, 600, 700),
    ],
)
def test_one_limit_alone(given: dict[str, Any], soft: float | None, hard: float | None) -> None:
    """The other one is left out, not taken from a default that may lie on the wrong side."""
    settings = Settings.from_conf(given)
    assert (settings.soft_time_limit, settings.time_limit) == (soft, hard)


def test_two_that_contradict_each_other_are_refused() -> None:
    """Both are the user's own words, so the user is asked."""
    with pytest.raises(ConfigurationError, match="would never be reached"):
        Settings.from_conf({"hardened_time_limit": 100, "hardened_soft_time_limit": 200})
