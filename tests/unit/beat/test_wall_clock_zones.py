"""Every zone, every change of its clock from 2000 to 2040, against the rule walked minute by minute."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from celery_hardened.beat.wall_clock import WallClock, wall_clock

UTC = timezone.utc
MINUTE = timedelta(minutes=1)

FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
_SHARES = 6


class Crontab(NamedTuple):
    minute: frozenset[int]
    hour: frozenset[int]
    weekday: frozenset[int]
    fixed: bool

    def shows(self, local: datetime) -> bool:
        return local.minute in self.minute and local.hour in self.hour and local.isoweekday() % 7 in self.weekday

    def slots(self, zone: ZoneInfo) -> WallClock:
        return wall_clock(
            minute=self.minute, hour=self.hour, day_of_month=range(1, 32), month_of_year=range(1, 13),
            day_of_week=self.weekday, fixed=self.fixed, zone=zone,
        )  # fmt: skip


HOURS, WEEK = frozenset(range(24)), frozenset(range(7))

CRONTABS = [
    Crontab(frozenset({0, 15, 30, 45}), HOURS, WEEK, fixed=False),
    Crontab(frozenset({30}), frozenset({0, 2, 23}), frozenset({0, 6}), fixed=False),
    Crontab(frozenset({30}), frozenset({0, 1, 2, 3, 23}), WEEK, fixed=True),
    Crontab(frozenset({0, 45}), HOURS, WEEK, fixed=True),
    Crontab(frozenset({59}), HOURS, frozenset({0, 5}), fixed=True),
]


def elapsed(crontab: Crontab, clock: list[tuple[datetime, datetime]]) -> Iterator[float]:
    """The rule for wildcards: each minute in which the clock shows a match."""
    for instant, local in clock:
        if crontab.shows(local):
            yield instant.timestamp()


def fixed(crontab: Crontab, clock: list[tuple[datetime, datetime]]) -> Iterator[float]:
    """The rule for fixed times: each is due when the clock first shows it, or has first gone past it."""
    coming = clock[0][1]
    for instant, local in clock:
        matched = False
        while coming <= local:
            matched = crontab.shows(coming) or matched
            coming += MINUTE
        if matched:
            yield instant.timestamp()


def changes(zone: ZoneInfo) -> list[tuple[datetime, timedelta]]:
    """When the offset changes, to the minute, and by how much. No two changes are within three days."""

    def offset(instant: datetime) -> timedelta:
        found = instant.astimezone(zone).utcoffset()
        assert found is not None
        return found

    found = []
    before, step = FIRST, timedelta(days=3)
    while before < LAST:
        after = before + step
        if (by := offset(after) - offset(before)) != timedelta():
            low, high = before, after
            while high - low > MINUTE:
                middle = low + (high - low) // 2 // MINUTE * MINUTE
                low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
            found.append((high, by))
        before = after
    return found


@cache
def all_changes() -> list[tuple[str, list[tuple[datetime, timedelta]]]]:
    """Zones with changes; of those that never differ in one from 2000 on, the first. Costs a few seconds."""
    kinds: dict[object, tuple[str, list[tuple[datetime, timedelta]]]] = {}
    for name in sorted(zoneinfo.available_timezones() - {"localtime"}):
        zone = ZoneInfo(name)
        if found := changes(zone):
            kinds.setdefault((FIRST.astimezone(zone).utcoffset(), tuple(found)), (name, found))
    return list(kinds.values())


@pytest.mark.slow
@pytest.mark.parametrize("share", range(_SHARES))
def test_around_every_change_of_every_zone(share: int) -> None:
    """After, latest and count name the slots that walking the local clock minute by minute names, and no others."""
    zones = all_changes()
    assert len(zones) > 100
    for name, found in zones[share::_SHARES]:
        zone = ZoneInfo(name)
        slots = [crontab.slots(zone) for crontab in CRONTABS]
        for change, by in found:
            margin = abs(by) + timedelta(minutes=65)
            clock = []
            instant = change - margin
            while instant < change + margin:
                clock.append((instant, instant.astimezone(zone).replace(tzinfo=None)))
                instant += MINUTE
            for crontab, ours in zip(CRONTABS, slots, strict=True):
                rule: Callable[[Crontab, list[tuple[datetime, datetime]]], Iterator[float]] = (
                    fixed if crontab.fixed else elapsed
                )
                assert named(ours, clock) == list(rule(crontab, clock)), f"{crontab} in {name} around {change}"


def named(slots: WallClock, clock: list[tuple[datetime, datetime]]) -> list[float]:
    """The slots that *slots* has while *clock* runs, asked for forwards, backwards and by number."""
    before, last = clock[0][0].timestamp() - 1, clock[-1][0].timestamp()
    forwards, backwards = [], []
    slot = slots.after(before)
    while slot is not None and slot <= last:
        forwards.append(slot)
        slot = slots.after(slot)
    slot = slots.latest(last)
    while slot is not None and slot > before:
        backwards.append(slot)
        slot = slots.latest(slot - 0.001)
    assert backwards[::-1] == forwards
    assert slots.count(before, last) == len(forwards)
    return forwards
