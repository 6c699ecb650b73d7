"""Timings and instants as ``hardened schedule`` writes and reads them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule

from celery_hardened.beat.kinds import when_of
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Schedule
from celery_hardened.cli.schedule import words

UTC = timezone.utc


class Moon:
    mark = "full"

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        return False, 60.0


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (30, "every 30 s"),
        (0.25, "every 0.25 s"),
        (90, "every 90 s"),
        (timedelta(minutes=5), "every 5 min"),
        (timedelta(hours=2), "every 2 h"),
        (timedelta(days=7), "every 7 d"),
        (schedule(3600, relative=True), "every 1 h, from round times in UTC"),
        (crontab(), "crontab * * * * *, UTC"),
        (crontab(minute="30", hour="2"), "crontab 30 2 * * *, UTC"),
        (crontab(minute="*/15"), "crontab */15 * * * *, UTC"),
        (crontab(minute="*/7", hour="*/5"), "crontab */7 */5 * * *, UTC"),
        (crontab(minute="0,30", hour="9-17", day_of_week="mon-fri"), "crontab 0,30 9-17 * * 1-5, UTC"),
        (crontab(minute="0", hour="0", day_of_month="*/2"), "crontab 0 0 */2 * *, UTC"),
        (crontab(minute="0-59", hour="2"), "crontab 0-59 2 * * *, UTC"),
        (crontab(minute="*/59", hour="2"), "crontab */59 2 * * *, UTC"),
        (crontab(minute="7", hour="*/24"), "crontab 7 0 * * * by elapsed time, UTC"),
        (SimpleNamespace(clocked_time=datetime(2026, 1, 1, tzinfo=UTC)), "once, 2026-01-01T00:00:00Z"),
        (Moon(), "Moon"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_timing_in_words(timing: Any, said: str) -> None:
    """Enough to know it again; a crontab's fields are to the same effect as they were written."""
    when = when_of(timing, app_timezone=UTC)
    assert words.timing(when) == said
    if isinstance(timing, crontab) and "elapsed" not in said:
        minute, hour, day, month, weekday = said.removeprefix("crontab ").removesuffix(", UTC").split()
        again = crontab(minute, hour, day_of_month=day, month_of_year=month, day_of_week=weekday)
        assert when_of(again, app_timezone=UTC).mark == when.mark


def test_instants_in_utc_and_in_a_zone() -> None:
    """With milliseconds only where there are any; offsets of both signs, and of half an hour."""
    assert words.utc(1767225600.0) == "2026-01-01T00:00:00Z"
    assert words.utc(1767225600.25) == "2026-01-01T00:00:00.250Z"
    assert words.utc(None) == "-"
    assert words.local(1767225600.0, ZoneInfo("America/New_York")) == "2025-12-31T19:00:00-05:00"
    assert words.local(1767225600.0, ZoneInfo("Asia/Kolkata")) == "2026-01-01T05:30:00+05:30"


def test_moments_are_read_both_ways() -> None:
    """Dates are UTC; a bare duration is ago, or ahead where only that makes sense; a sign says which."""
    assert words.moment("2026-01-01", now=0.0) == 1767225600.0
    assert words.moment("2026-01-01T01:00+01:00", now=0.0) == 1767225600.0
    assert words.moment("2h", now=10_000.0) == 2800.0
    assert words.moment("+2h", now=10_000.0) == 17_200.0
    assert words.ahead("2h", now=10_000.0) == 17_200.0
    assert words.ahead("+30m", now=10_000.0) == 11_800.0
    with pytest.raises(ValueError, match="tomorrow"):
        words.ahead("tomorrow", now=0.0)


def test_only_what_differs_of_a_policy_is_said() -> None:
    """The defaults of the app are known."""
    one = Schedule(name="n", task="t", when=when_of(60, app_timezone=UTC), policy=Policy(overlap="skip", jitter=5.0))
    assert words.policy(one, Policy()) == "overlap=skip, jitter=5"
    assert words.policy(one, one.policy) == ""
