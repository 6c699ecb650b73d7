"""What a range of slots looks like to somebody who wants to know about a night in March."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab

from celery_hardened.beat.kinds import when_of
from celery_hardened.beat.preview import Line, preview
from celery_hardened.beat.slots import Between, Interval

NY = ZoneInfo("America/New_York")


def lines(found: Any, first: str, last: str, *, zone: tzinfo = NY, **options: Any) -> list[Line]:
    slots = when_of(found, app_timezone=zone).slots(0.0) if isinstance(found, crontab) else found
    start, end = (datetime.fromisoformat(local).replace(tzinfo=zone).timestamp() for local in (first, last))
    return preview(slots, start, end, zone=zone, **options)


def texts(found: list[Line]) -> list[tuple[bool, str, str, str]]:
    return [(line.due, line.local, line.offset, line.note) for line in found]


def test_a_time_that_does_not_exist() -> None:
    """The slot right after the jump says what it stands for."""
    assert texts(lines(crontab(hour=2, minute=30), "2026-03-07", "2026-03-10")) == [
        (True, "2026-03-07 02:30:00", "-05:00", ""),
        (
            True,
            "2026-03-08 03:00:00",
            "-04:00",
            "the clock jumps 02:00→03:00: 02:30 does not exist, fired at 03:00",
        ),
        (True, "2026-03-09 02:30:00", "-04:00", ""),
    ]


def test_a_fixed_time_that_comes_twice() -> None:
    """Fired at the first; the change itself has a line."""
    assert texts(lines(crontab(hour="1", minute=0), "2026-11-01", "2026-11-02")) == [
        (True, "2026-11-01 01:00:00", "-04:00", "01:00 comes twice: fired at the first"),
        (False, "2026-11-01 01:00:00", "-05:00", "the clock goes back 02:00→01:00"),
    ]


def test_elapsed_time_goes_through_both_copies() -> None:
    """Each says which of the two it is."""
    assert [note for *_, note in texts(lines(crontab(minute="*/30"), "2026-11-01T00:30", "2026-11-01T02:30"))] == [
        "",
        "01:00 comes twice: this is the first",
        "01:30 comes twice: this is the first",
        "01:00 comes twice: this is the second",
        "01:30 comes twice: this is the second",
        "",
    ]


def test_elapsed_time_that_a_jump_leaves_out() -> None:
    """Nothing is due that night, and the line of the change says what is not."""
    assert texts(lines(crontab(hour=2, minute="*/10"), "2026-03-08", "2026-03-09")) == [
        (
            False,
            "2026-03-08 03:00:00",
            "-04:00",
            "the clock jumps 02:00→03:00: 02:00, 02:10, 02:20 and more do not exist",
        )
    ]


def test_a_day_that_does_not_exist() -> None:
    """Samoa had no 30 December 2011: the note has dates."""
    found = lines(
        crontab(hour=2, minute=30, day_of_month=30), "2011-12-29", "2012-01-01", zone=ZoneInfo("Pacific/Apia")
    )
    assert [line.note for line in found] == [
        "the clock jumps 2011-12-30 00:00→2011-12-31 00:00: 2011-12-30 02:30 does not exist, fired at 00:00"
    ]


def test_intervals_know_nothing_of_clocks() -> None:
    """Their slots are told in local time, with milliseconds where there are any, and the change beside them."""
    start = datetime(2026, 3, 8, 1, 30, tzinfo=NY).timestamp()
    found = preview(Interval(start, 1800.25), start, start + 3700, zone=NY)
    assert texts(found) == [
        (False, "2026-03-08 03:00:00", "-04:00", "the clock jumps 02:00→03:00"),
        (True, "2026-03-08 03:00:00.250", "-04:00", ""),
        (True, "2026-03-08 03:30:00.500", "-04:00", ""),
    ]


def test_a_range_includes_its_start_and_excludes_its_end() -> None:
    """And bounds of the schedule hold within it, with the notes as without."""
    assert len(lines(crontab(hour=2, minute=30), "2026-03-02T02:30", "2026-03-04T02:30")) == 2
    slots = when_of(crontab(hour=2, minute=30), app_timezone=NY).slots(0.0)
    start = datetime(2026, 3, 8, tzinfo=NY).timestamp()
    (line,) = lines(Between(slots, start, start + 86_400), "2026-03-01", "2026-04-01")
    assert "02:30 does not exist" in line.note


def test_no_more_than_most() -> None:
    """What follows the last slot that there was room for is left out, changes of the clock, too."""
    found = lines(crontab(minute="*"), "2026-03-08T00:00", "2026-03-09", most=5)
    assert [line.local[-8:] for line in found] == [f"00:0{minute}:00" for minute in range(5)]
    assert lines(crontab(day_of_month=31, month_of_year=1), "2026-03-01", "2026-03-02") == []
