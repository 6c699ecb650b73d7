"""Crontabs in a zone: what is due when the clock is put forward or back."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from time import process_time
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.beat.wall_clock import WallClock, wall_clock

HOUR, DAY = 3600.0, 86_400.0


def slots_of(line: str, zone: str = "UTC") -> WallClock:
    """*line* is "minute hour day-of-month month day-of-week", as crontab(5) has it."""
    minute, hour, day, month, weekday = line.split()
    parsed = crontab(minute, hour, weekday, day, month)
    return wall_clock(
        minute=parsed.minute,
        hour=parsed.hour,
        day_of_month=parsed.day_of_month,
        month_of_year=parsed.month_of_year,
        day_of_week=parsed.day_of_week,
        fixed=not (minute.startswith("*") or hour.startswith("*")),
        zone=ZoneInfo(zone),
    )


def instant(local: str, zone: str) -> float:
    return datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).timestamp()


def due(line: str, zone: str, first: str, last: str) -> list[str]:
    """Slots strictly between two local times, as local times with their offset."""
    slots, end = slots_of(line, zone), instant(last, zone)
    found = []
    slot = slots.after(instant(first, zone))
    while slot is not None and slot < end:
        found.append(datetime.fromtimestamp(slot, ZoneInfo(zone)).isoformat(timespec="minutes"))
        slot = slots.after(slot)
    return found


NY, LONDON = "America/New_York", "Europe/London"

#: Zone, the evening before, the clock's change.
SPRING = [(NY, "2026-03-07T20:00"), (LONDON, "2026-03-28T20:00")]
AUTUMN = [(NY, "2026-10-31T20:00"), (LONDON, "2026-10-24T20:00")]


@pytest.mark.parametrize(
    ("zone", "line", "expected"),
    [
        (NY, "30 2 * * *", "2026-03-08T03:00-04:00"),
        (LONDON, "30 1 * * *", "2026-03-29T02:00+01:00"),
    ],
)
def test_spring_a_time_in_the_gap_is_due_once_right_after_it(zone: str, line: str, expected: str) -> None:
    """02:30 does not exist: due when the clock has jumped, at 03:00, and not again that day."""
    day = expected[:10]
    assert due(line, zone, f"{day}T00:00", f"{day}T23:00") == [expected]


@pytest.mark.parametrize(
    ("zone", "line", "expected"),
    [
        (NY, "30 1 * * *", "2026-11-01T01:30-04:00"),
        (NY, "30 2 * * *", "2026-11-01T02:30-05:00"),
        (LONDON, "30 1 * * *", "2026-10-25T01:30+01:00"),
        (LONDON, "30 2 * * *", "2026-10-25T02:30+00:00"),
    ],
)
def test_autumn_a_fixed_time_is_due_once(zone: str, line: str, expected: str) -> None:
    """In the repeated hour: the first time. After it: on time, not an hour late."""
    day = expected[:10]
    assert due(line, zone, f"{day}T00:00", f"{day}T23:00") == [expected]


@pytest.mark.parametrize(("zone", "evening"), [*SPRING, *AUTUMN])
@pytest.mark.parametrize(("line", "expected"), [("0 * * * *", 8), ("*/15 * * * *", 35)])
def test_wildcards_go_by_elapsed_time(zone: str, evening: str, line: str, expected: int) -> None:
    """Nine hours over a change hold as many slots as any nine hours, at equal distances."""
    slots, start = slots_of(line, zone), instant(evening, zone)
    assert slots.count(start, start + 9 * HOUR - 1) == expected
    found = [start]
    while (slot := slots.after(found[-1])) is not None and slot < start + 9 * HOUR:
        found.append(slot)
    assert {after - before for before, after in pairwise(found)} == {9 * HOUR / (expected + 1)}


@pytest.mark.parametrize(
    ("zone", "line", "first", "last", "expected"),
    [
        # Half an hour forward, and back.
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04T00:00", "2026-10-04T12:00", ["2026-10-04T02:30+11:00"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05T00:00", "2026-04-05T12:00", ["2026-04-05T01:45+11:00"]),
        (
            "Australia/Lord_Howe",
            "*/15 1 * * *",
            "2026-04-05T01:01",
            "2026-04-05T12:00",
            [f"2026-04-05T01:{minute}" for minute in ("15+11:00", "30+11:00", "45+11:00", "30+10:30", "45+10:30")],
        ),
        ("Australia/Lord_Howe", "0 */2 * * *", "2026-04-05T01:00", "2026-04-05T03:00", ["2026-04-05T02:00+10:30"]),
        # Offsets of three quarters of an hour.
        ("Pacific/Chatham", "0 3 * * *", "2026-09-27T00:00", "2026-09-27T12:00", ["2026-09-27T03:45+13:45"]),
        ("Pacific/Chatham", "0 3 * * *", "2026-04-05T00:00", "2026-04-05T12:00", ["2026-04-05T03:00+13:45"]),
        # Two hours: two fixed times meet right after the jump, and are one slot.
        ("Antarctica/Troll", "30 1,2 * * *", "2026-03-29T00:00", "2026-03-29T12:00", ["2026-03-29T03:00+02:00"]),
        (
            "Antarctica/Troll",
            "0 * * * *",
            "2026-10-25T00:30",
            "2026-10-25T03:30",
            [f"2026-10-25T0{hour}:00+0{offset}:00" for hour, offset in ((1, 2), (2, 2), (1, 0), (2, 0), (3, 0))],
        ),
        # Midnight does not exist.
        ("America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00", "2018-11-04T12:00", ["2018-11-04T01:00-02:00"]),
        ("America/Sao_Paulo", "0 0 4 11 *", "2018-11-03T12:00", "2018-11-04T12:00", ["2018-11-04T01:00-02:00"]),
        # A day that does not exist.
        (
            "Pacific/Apia",
            "30 2 * * *",
            "2011-12-29T00:00",
            "2011-12-31T12:00",
            ["2011-12-29T02:30-10:00", "2011-12-31T00:00+14:00", "2011-12-31T02:30+14:00"],
        ),
        ("Pacific/Apia", "30 2 30 12 *", "2011-12-29T00:00", "2012-12-01T12:00", ["2011-12-31T00:00+14:00"]),
        ("Pacific/Apia", "*/30 2 30 12 *", "2011-12-29T00:00", "2012-12-01T12:00", []),
        # The jump is at the end of a day.
        ("America/Nuuk", "30 23 * * *", "2024-03-30T12:00", "2024-03-31T12:00", ["2024-03-31T00:00-01:00"]),
        ("America/Nuuk", "30 23 * * *", "2024-10-26T12:00", "2024-10-27T12:00", ["2024-10-26T23:30-01:00"]),
        # Back for Ramadan, and forward again.
        ("Africa/Casablanca", "30 2 * * *", "2026-02-15T00:00", "2026-02-15T12:00", ["2026-02-15T02:30+01:00"]),
        ("Africa/Casablanca", "30 2 * * *", "2026-03-22T00:00", "2026-03-22T12:00", ["2026-03-22T03:00+01:00"]),
        # Summer is the standard time, and winter is an hour less.
        ("Europe/Dublin", "30 1 * * *", "2026-03-29T00:00", "2026-03-29T12:00", ["2026-03-29T02:00+01:00"]),
        ("Europe/Dublin", "30 1 * * *", "2026-10-25T00:00", "2026-10-25T12:00", ["2026-10-25T01:30+01:00"]),
    ],
)
def test_peculiar_zones(zone: str, line: str, first: str, last: str, expected: list[str]) -> None:
    """The rule, where changes are not an hour, not in the night, or not once a season."""
    assert due(line, zone, first, last) == expected


def test_times_that_meet_right_after_the_jump_are_one_slot() -> None:
    """02:15 and 02:45 are both due at 03:00, as is 03:00 itself: once."""
    assert due("0,15,45 2,3 * * *", NY, "2026-03-08T00:00", "2026-03-08T12:00") == [
        "2026-03-08T03:00-04:00",
        "2026-03-08T03:15-04:00",
        "2026-03-08T03:45-04:00",
    ]
    start = instant("2026-03-08T00:00", NY)
    assert slots_of("0,15,45 2,3 * * *", NY).count(start, start + 12 * HOUR) == 3


def test_a_wildcard_hour_or_minute_has_no_slot_in_the_gap() -> None:
    """By elapsed time, an hour that does not exist passes in no time."""
    assert due("*/15 2 * * *", NY, "2026-03-08T00:00", "2026-03-08T12:00") == []
    assert due("30 * * * *", NY, "2026-03-08T01:00", "2026-03-08T04:00") == [
        "2026-03-08T01:30-05:00",
        "2026-03-08T03:30-04:00",
    ]


class PutBack(tzinfo):
    """UTC+1 until *change*, an instant, and UTC from then on."""

    def __init__(self, change: int) -> None:
        self.change = datetime.fromtimestamp(change, timezone.utc).replace(tzinfo=None)

    def fromutc(self, dt: datetime) -> datetime:
        return dt + timedelta(hours=dt.replace(tzinfo=None) < self.change)

    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta()


@pytest.mark.parametrize("minutes", [-75, -60, -45, -1, 0, 1, 45])
def test_a_change_where_offsets_are_looked_up_anew(minutes: int) -> None:
    """Offsets are looked up for 2**25 seconds at once; a change right before or after that is seen from both sides."""
    border = 50 << 25
    change = border + 60 * minutes
    zone = PutBack(change)
    slots = wall_clock(
        minute=[0, 15, 30, 45], hour=range(24), day_of_month=range(1, 32), month_of_year=range(1, 13),
        day_of_week=range(7), fixed=True, zone=zone,
    )  # fmt: skip
    start, end = border - 4 * HOUR, border + 4 * HOUR
    found = [start]
    while (slot := slots.after(found[-1])) is not None and slot <= end:
        found.append(slot)
    shown = [datetime.fromtimestamp(slot, zone).replace(tzinfo=None) for slot in found[1:]]
    assert len(shown) == len(set(shown)) == slots.count(start, end) == 28
    assert all(not change <= slot < change + HOUR for slot in found)
    assert [slots.latest(after - 1) for after in found[2:]] == found[1:-1]


# --- the calendar ---


def test_leap_days() -> None:
    """29 February is found eight years ahead over 2100, and on a given weekday forty."""
    assert due("0 0 29 2 *", "UTC", "2096-02-29T00:00", "2104-03-01T00:00") == ["2104-02-29T00:00+00:00"]
    assert due("0 0 29 2 1", "UTC", "2072-03-01T00:00", "2113-03-01T00:00") == ["2112-02-29T00:00+00:00"]
    back = slots_of("0 0 29 2 1").latest(instant("2112-02-28T23:59", "UTC"))
    assert back == instant("2072-02-29T00:00", "UTC")


@pytest.mark.parametrize("fixed", [True, False])
def test_a_day_that_never_comes_has_no_slots(fixed: bool) -> None:
    """30 February, 31 in the short months: nothing is found, and it is not looked for for ever."""
    for days, months in (([30, 31], [2]), ([31], [2, 4, 6, 9, 11])):
        slots = wall_clock(
            minute=[0], hour=[0], day_of_month=days, month_of_year=months, day_of_week=range(7), fixed=fixed,
            zone=ZoneInfo(NY),
        )  # fmt: skip
        assert slots.after(0.0) is None
        assert slots.latest(4e9) is None
        assert slots.count(-math.inf, math.inf) == 0


def test_day_of_month_and_weekday_must_both_match() -> None:
    """As in Celery, and not as in cron: the 13th, if it is a Friday. Sunday is 0."""
    assert [day[:10] for day in due("0 0 13 * 5", "UTC", "2026-01-01T00:00", "2027-01-01T00:00")] == [
        "2026-02-13",
        "2026-03-13",
        "2026-11-13",
    ]
    assert [day[:10] for day in due("0 0 * 11 0", "UTC", "2026-01-01T00:00", "2026-11-16T00:00")] == [
        "2026-11-01",
        "2026-11-08",
        "2026-11-15",
    ]


def test_there_are_slots_from_1970_to_2399_only() -> None:
    """An instant that cannot be a date is no error."""
    slots = slots_of("30 2 * * *", NY)
    assert slots.after(-math.inf) == instant("1970-01-01T02:30", NY)
    assert slots.latest(math.inf) == instant("2399-12-31T02:30", NY)
    assert slots.after(math.inf) is None
    assert slots.latest(-math.inf) is None
    assert slots.count(-math.inf, math.inf) == 430 * 365 + 104


# --- three questions, one answer ---

fields = st.builds(
    lambda minute, hour, day, month, weekday, zone, fixed: wall_clock(
        minute=minute, hour=hour, day_of_month=day, month_of_year=month, day_of_week=weekday, fixed=fixed,
        zone=ZoneInfo(zone),
    ),
    st.sets(st.integers(0, 59), min_size=1, max_size=4),
    st.one_of(st.just(set(range(24))), st.sets(st.integers(0, 23), min_size=1, max_size=4)),
    st.one_of(st.just(set(range(1, 32))), st.sets(st.integers(1, 31), min_size=1)),
    st.one_of(st.just(set(range(1, 13))), st.sets(st.integers(1, 12), min_size=1)),
    st.one_of(st.just(set(range(7))), st.sets(st.integers(0, 6), min_size=1)),
    st.sampled_from([NY, LONDON, "UTC", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia"]),
    st.booleans(),
)  # fmt: skip


@given(slots=fields, start=st.floats(946_684_800, 2_208_988_800), days=st.floats(0, 60))
def test_count_after_and_latest_agree(slots: WallClock, start: float, days: float) -> None:
    """Slots are in order and none comes twice; count is how many there are; latest is after, looked at from behind."""
    end = start + days * DAY
    found = []
    slot = slots.after(start)
    while slot is not None and slot <= end:
        found.append(slot)
        slot = slots.after(slot)

    assert all(before < after for before, after in pairwise([start, *found]))
    assert slots.count(start, end) == len(found)
    for before, after in pairwise(found):
        assert slots.latest(after - 0.001) == before
        assert slots.latest(after) == after
    if found:
        assert slots.latest(end) == found[-1]
    elif slot is not None:
        before_all = slots.latest(start)
        assert before_all is None or slots.after(before_all) == slot


@given(slots=fields, cuts=st.lists(st.floats(946_684_800, 2_208_988_800), min_size=3, max_size=3))
def test_counts_add_up(slots: WallClock, cuts: list[float]) -> None:
    """count(a, c) is count(a, b) + count(b, c), over decades."""
    first, middle, last = sorted(cuts)
    assert slots.count(first, last) == slots.count(first, middle) + slots.count(middle, last)


def test_the_same_crontab_is_the_same_object() -> None:
    """100,000 schedules of a few crontabs keep a few."""
    assert slots_of("30 2 * * *", NY) is slots_of("30 2 * * *", NY)
    assert slots_of("30 2 * * *", NY) != slots_of("30 2 * * *", LONDON)
    assert len({slots_of("30 2 * * *", NY), slots_of("30 2 * * *", LONDON)}) == 2


def test_looking_is_cheap() -> None:
    """Some microseconds for the next slot or a month's count, whatever the crontab. The bound has a lot of slack."""
    now = datetime(2026, 3, 1, tzinfo=timezone.utc).timestamp()
    for line in ("30 2 * * *", "*/5 * * * *", "* * * * *", "30 2 * * mon-fri", "0 0 29 2 1"):
        slots = slots_of(line, NY)
        slots.after(now)
        begun = process_time()
        for step in range(1_000):
            slots.after(now + step * 60)
            slots.latest(now + step * 60)
            slots.count(now, now + timedelta(days=30).total_seconds())
        assert (process_time() - begun) / 3_000 < 0.001
