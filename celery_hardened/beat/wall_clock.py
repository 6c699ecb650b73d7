"""Crontab slots in a zone, by the rule of Debian's cron. Pure.

- A *fixed* time (neither the minute nor the hour is written with a leading ``*``) is due at the first instant at
  which the local clock has reached it. So a time that a jump ahead leaves out is due once, right after the jump, and
  one that comes twice is due once, the first time.
- Otherwise elapsed time counts: it is due whenever the local clock shows a matching minute, so through both copies of
  a repeated hour, and not at all in one that does not exist.

Fields match as Celery's do: all of them must. Sets are kept as bits, for 100,000 schedules are to be small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, tzinfo
from functools import lru_cache

from celery_hardened.beat.zone import Zone, zone_of

_DAY = 86_400

#: Ordinal of 1970-01-01.
_EPOCH = date(1970, 1, 1).toordinal()

#: There are no slots outside of the years 1970 to 2399.
_EARLIEST = 0
_LATEST = (date(2400, 1, 1).toordinal() - _EPOCH) * _DAY - 1

#: Nothing is looked for further away. 29 February on a given weekday may be 40 years off.
_YEARS = 50
_HORIZON = _YEARS * 366 * _DAY

#: No clock is put back by more, so beyond that no local time comes again.
_TWO_DAYS = 2 * _DAY

_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class WallClock:
    """Made by ``wall_clock``. Fields are bit masks: bit *n* is the value *n*."""

    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    """Bit 0 is Sunday."""

    fixed: bool
    zone: Zone

    _daily: bool = field(init=False, repr=False, compare=False)
    _possible: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        daily = self.days == 0xFFFFFFFE and self.months == 0x1FFE and self.weekdays == 0x7F
        longest = (31, 29, *_LENGTHS[2:])
        possible = self.minutes and self.hours and self.weekdays
        possible = possible and any(
            self.months >> month & 1 and self.days & (2 << length) - 2 for month, length in enumerate(longest, 1)
        )
        object.__setattr__(self, "_daily", daily)
        object.__setattr__(self, "_possible", bool(possible))

    # --- Slots ---

    def after(self, instant: float) -> float | None:
        at = _second(instant) + 1
        if not self._possible:
            return None
        zone, limit = self.zone, min(at + _HORIZON, _LATEST + 1)
        while at < limit:
            start, end, offset, reached = zone.span(at)
            local = at + offset
            if self.fixed and (at == start or reached > local):
                local = reached
            match = self._next(local)
            if match is None:
                return None
            slot = match - offset
            if slot < start:
                slot = start
            if slot < end:
                return float(slot) if slot <= _LATEST else None
            # What matches next is far off. Until the clock has passed what it has shown, it may show another first.
            at = max(end, slot - _TWO_DAYS) if end >= at + _TWO_DAYS else end
        return None

    def latest(self, instant: float) -> float | None:
        at = _second(instant)
        if not self._possible:
            return None
        zone, limit = self.zone, max(at - _HORIZON, _EARLIEST - 1)
        while at > limit:
            start, _, offset, reached = zone.span(at)
            match = self._last(at + offset)
            if match is None:
                return None
            slot = match - offset
            # A fixed time that the clock had reached before was due then; one that it jumped over is due at the start.
            if match >= reached if self.fixed else slot >= start:
                return float(max(slot, start)) if slot >= _EARLIEST else None
            at = min(start - 1, slot + _TWO_DAYS) if start - 1 <= at - _TWO_DAYS else start - 1
        return None

    def count(self, after: float, upto: float) -> int:
        at, last = _second(after) + 1, _second(upto)
        if not self._possible:
            return 0
        total = 0
        while at <= last:
            start, end, offset, reached = self.zone.span(at)
            local, to = at + offset, min(last, end - 1) + offset
            if self.fixed and (at == start or reached > local):
                if reached < local:
                    # The jump: whatever it left out, and what is due right after it, are one slot.
                    match = self._next(reached)
                    total += match is not None and match <= local
                    local += 1
                else:
                    local = reached
            total += self._between(local, to)
            at = end
        return total

    # --- local time ---

    def matches(self, first: int, last: int) -> Iterator[int]:
        """The matching local times in [*first*, *last*], in seconds; whether the clock ever shows them or not."""
        match = self._next(first) if self._possible else None
        while match is not None and match <= last:
            yield match
            match = self._next(match + 1)

    def _next(self, local: int) -> int | None:
        """The first match not before *local*."""
        day, second = divmod(local + 59, _DAY)
        found = self._next_day(day)
        if found == day:
            hour, minute = divmod(second // 60, 60)
            if self.hours >> hour & 1 and (rest := self.minutes >> minute):
                return day * _DAY + hour * 3600 + (minute + _low(rest)) * 60
            if rest := self.hours >> hour + 1:
                return day * _DAY + (hour + 1 + _low(rest)) * 3600 + _low(self.minutes) * 60
            found = self._next_day(day + 1)
        return None if found is None else found * _DAY + _low(self.hours) * 3600 + _low(self.minutes) * 60

    def _last(self, local: int) -> int | None:
        """The last match not after *local*."""
        day, second = divmod(local, _DAY)
        found = self._last_day(day)
        if found == day:
            hour, minute = divmod(second // 60, 60)
            if self.hours >> hour & 1 and (rest := self.minutes & (2 << minute) - 1):
                return day * _DAY + hour * 3600 + _high(rest) * 60
            if rest := self.hours & (1 << hour) - 1:
                return day * _DAY + _high(rest) * 3600 + _high(self.minutes) * 60
            found = self._last_day(day - 1)
        return None if found is None else found * _DAY + _high(self.hours) * 3600 + _high(self.minutes) * 60

    def _between(self, first: int, last: int) -> int:
        """How many matches lie in [*first*, *last*]."""
        one, another = -(-first // 60), last // 60
        if one > another:
            return 0
        (day, minute), (last_day, last_minute) = divmod(one, 1440), divmod(another, 1440)
        if day == last_day:
            return (self._upto(last_minute) - self._upto(minute - 1)) * self._days(day, day)
        return (
            (self._upto(1439) - self._upto(minute - 1)) * self._days(day, day)
            + self._upto(1439) * self._days(day + 1, last_day - 1)
            + self._upto(last_minute) * self._days(last_day, last_day)
        )

    def _upto(self, minute: int) -> int:
        """How many times of a day are not after its *minute*-th minute."""
        if minute < 0:
            return 0
        hour, rest = divmod(minute, 60)
        whole = (self.hours & (1 << hour) - 1).bit_count() * self.minutes.bit_count()
        return whole + (self.hours >> hour & 1) * (self.minutes & (2 << rest) - 1).bit_count()

    # --- days, counted from 1970-01-01 ---

    def _next_day(self, day: int) -> int | None:
        if self._daily:
            return day
        at = date.fromordinal(day + _EPOCH)
        year, month = at.year, at.month
        mask = self._month(year, month) >> at.day << at.day
        until = year + _YEARS
        while not mask:
            if not (rest := self.months >> month + 1):
                year, month, rest = year + 1, 0, self.months >> 1
            month += 1 + _low(rest)
            if year > until:
                return None
            mask = self._month(year, month)
        return date(year, month, _low(mask)).toordinal() - _EPOCH

    def _last_day(self, day: int) -> int | None:
        if self._daily:
            return day
        at = date.fromordinal(day + _EPOCH)
        year, month = at.year, at.month
        mask = self._month(year, month) & (2 << at.day) - 1
        until = year - _YEARS
        while not mask:
            if not (rest := self.months & (1 << month) - 1):
                year, rest = year - 1, self.months
            month = _high(rest)
            if year < until:
                return None
            mask = self._month(year, month)
        return date(year, month, _high(mask)).toordinal() - _EPOCH

    def _days(self, first: int, last: int) -> int:
        """How many matching days there are from *first* to *last*, both included."""
        if first > last:
            return 0
        if self._daily:
            return last - first + 1
        at, end = date.fromordinal(first + _EPOCH), date.fromordinal(last + _EPOCH)
        total = -(self._month(at.year, at.month) & (1 << at.day) - 1).bit_count()
        total -= (self._month(end.year, end.month) >> end.day + 1).bit_count()
        for index in range(at.year * 12 + at.month - 1, end.year * 12 + end.month):
            total += self._month(index // 12, index % 12 + 1).bit_count()
        return total

    def _month(self, year: int, month: int) -> int:
        """The matching days of a month, as bits."""
        if not self.months >> month & 1:
            return 0
        length = 29 if month == 2 and _is_leap(year) else _LENGTHS[month - 1]
        first = date(year, month, 1).isoweekday() % 7
        week = (self.weekdays >> first | self.weekdays << 7 - first) & 0x7F
        # Five copies of the week side by side, the first day of the month at bit 1.
        return self.days & (week * 0x10204081 << 1) & (2 << length) - 2


def wall_clock(
    *,
    minute: Iterable[int],
    hour: Iterable[int],
    day_of_month: Iterable[int],
    month_of_year: Iterable[int],
    day_of_week: Iterable[int],
    fixed: bool,
    zone: tzinfo,
) -> WallClock:
    """The slots of a crontab in *zone*. Equal ones are the same object.

    Args:
        day_of_week: 0 is Sunday.
        fixed: Neither minute nor hour was written with a leading ``*``.
    """
    return _shared(
        _mask(minute), _mask(hour), _mask(day_of_month), _mask(month_of_year), _mask(day_of_week), fixed, zone_of(zone)
    )


@lru_cache(maxsize=16_384)
def _shared(minutes: int, hours: int, days: int, months: int, weekdays: int, fixed: bool, zone: Zone) -> WallClock:
    return WallClock(minutes, hours, days, months, weekdays, fixed, zone)


def _second(instant: float) -> int:
    return math.floor(min(max(instant, _EARLIEST - 1), _LATEST))


def _mask(values: Iterable[int]) -> int:
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask


def _low(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _high(mask: int) -> int:
    return mask.bit_length() - 1


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
