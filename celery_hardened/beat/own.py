"""Slots of schedules that work out themselves when they are due: the user's own classes, and the sun.

What is promised for a user's class with ``is_due(last_run_at) -> (due, seconds)``:

- It decides. A slot is an instant at which it said ``due``, having been told that the slot before was its last run.
- If it takes the time from ``self.now()``, as Celery's own classes do, it is asked about instants that have passed
  one after the other, each named by itself (``seconds`` later than the one before). So the slots do not depend on
  when somebody looks, and missed ones are found again.
- If it reads a clock of its own, it can be asked about the present only: its slot is the moment at which it first
  said ``due``, and of missed ones there is at most one. One that is due at once again, just having been fired, is
  not asked again before the ``seconds`` it gave are over, nor within a second.
- An instant in the future is what it named, and is asked about when it has come. What the future is says the clock
  of the beat (``now_is``), which after a step back is ahead of the time of day: by another clock than the one it is
  compared with, an instant that the class has only named would pass for one at which it said ``due``.
- At most 10,000 slots are counted, from the ``after`` last asked about (else from a day before): it has no past.

What it raises is raised. It is asked on a copy, so that it may keep state without changing its fingerprint.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta, timezone, tzinfo
from datetime import time as time_of_day
from functools import partial
from typing import Any

from celery.schedules import BaseSchedule

from celery_hardened.errors import ConfigurationError

#: Of one walk.
_MOST_SLOTS = 10_000
_MOST_LOOKS = 1_000

_DAY = 86_400.0

#: Beyond this Celery has given up looking for an event of the sun. It looks 366 days ahead.
_YEAR = 365.5 * _DAY

#: What an instance keeps that says nothing about when it is due.
_NOT_TIMING = ("nowfun", "app", "_app", "tz", "utc_enabled")


class Own:
    """Slots of a user's own schedule; see the module. Of one thread."""

    __slots__ = ("_asked", "_at", "_clock", "_from", "_given", "_hold", "_refused", "_schedule", "_tz")

    def __init__(self, schedule: Any, app_timezone: tzinfo, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._at = 0.0
        self._asked = False
        self._from: float | None = None
        # Of a schedule with a clock of its own: the slot it was given last, the run after which it was not due at
        # first, and until when it is not asked after a run.
        self._given: float | None = None
        self._refused: float | None = None
        self._hold: tuple[float, float] | None = None
        self._tz = app_timezone
        self._schedule = _copy(schedule)
        if self._schedule is not schedule:
            now = self._schedule.now()
            if isinstance(now, datetime) and now.tzinfo is not None:
                self._schedule.nowfun = partial(self._now, now.tzinfo)

    def now_is(self, now: float) -> None:
        """From here on the present is *now*, in seconds since the epoch, whatever the clock says. No slot up to then
        is one that the class was not asked about."""
        self._clock = lambda: now

    def after(self, instant: float) -> float | None:
        self._from = instant
        return self._after(instant)

    def latest(self, instant: float) -> float | None:
        start = self._from if self._from is not None and self._from < instant else instant - _DAY
        last = None
        for last in self._walk(start, instant):  # noqa: B007 - the last one is wanted
            pass
        return last

    def count(self, after: float, upto: float) -> int:
        return sum(1 for _ in self._walk(after, upto))

    def _walk(self, after: float, upto: float) -> Iterator[float]:
        slot: float | None = after
        for _ in range(_MOST_SLOTS):
            slot = self._after(slot) if slot is not None else None
            if slot is None or slot > upto:
                return
            yield slot

    def _after(self, last: float) -> float | None:
        now = self._clock()
        if self._hold is not None and self._hold[0] == last and now < self._hold[1]:
            return self._hold[1]
        at = last
        for look in range(_MOST_LOOKS):
            due, seconds = self._ask(last, at)
            if not self._asked:
                return self._present(last, now, due, seconds)
            if due and at > last:
                return at
            if seconds is None:
                return None
            at = _ceil(at + max(seconds, 0.001))
            if at > now:
                return at
            if look == _MOST_LOOKS - 2:
                # It wants to be looked at so often that only the present can be caught up with.
                at = max(at, math.floor(now * 1000) / 1000)
        return at

    def _present(self, last: float, now: float, due: bool, seconds: float | None) -> float | None:
        """It has a clock of its own, so this is its answer for *now*."""
        if not due:
            self._refused = last
            return None if seconds is None else _ceil(max(now, last) + max(seconds, 0.001))
        held = self._hold is not None and self._hold[0] == last
        if last == self._refused or not (held or last == self._given or now - last < 1):
            self._given = max(math.floor(now * 1000) / 1000, _ceil(last + 0.001))
            return self._given
        # Fired a moment ago, and due still: then what it said counts, for else it would be fired without end.
        self._given = _ceil(last + max(seconds or 0.0, 1.0))
        self._hold = (last, self._given)
        return self._given

    def _ask(self, last: float, at: float) -> tuple[bool, float | None]:
        self._at, self._asked = at, False
        due, seconds = self._schedule.is_due(datetime.fromtimestamp(last, self._tz))
        seconds = None if seconds is None else float(seconds)
        return bool(due), seconds if seconds is not None and math.isfinite(seconds) else None

    def _now(self, zone: tzinfo) -> datetime:
        self._asked = True
        return datetime.fromtimestamp(self._at, zone)


class Solar:
    """Slots of Celery's ``solar``: events of the sun, to the second. Needs ``ephem``. Of one thread."""

    __slots__ = ("_at", "_schedule")

    def __init__(self, schedule: Any) -> None:
        self._at = 0.0
        self._schedule = _copy(schedule)
        self._schedule.nowfun = lambda: datetime.fromtimestamp(self._at, timezone.utc)
        if getattr(schedule, "ephem", None) is None:
            raise ConfigurationError("a solar schedule needs the package ephem: pip install 'celery[solar]'.")

    def after(self, instant: float) -> float | None:
        # A slot is its event to the second, so the event of one that is still to come may just have passed.
        slot = self._event(instant - 2)
        return self._event(slot + 3600) if slot is not None and slot <= instant else slot

    def latest(self, instant: float) -> float | None:
        for days in (2, 20, 200, 400):
            last = None
            for last in self._walk(instant - days * _DAY, instant):  # noqa: B007 - the last one is wanted
                pass
            if last is not None:
                return last
        return None

    def count(self, after: float, upto: float) -> int:
        return sum(1 for _ in self._walk(after, upto))

    def _walk(self, after: float, upto: float) -> Iterator[float]:
        slot = self.after(after)
        while slot is not None and slot <= upto:
            yield slot
            slot = self.after(slot)

    def _event(self, start: float) -> float | None:
        rough = self._search(start)
        if rough is None:
            return None
        # What is found differs a little with where the search began. So it is begun anew, always at the same place.
        exact = self._search(rough // 3600 * 3600 - 7200)
        return float(round(rough if exact is None or abs(exact - rough) > 1800 else exact))

    def _search(self, start: float) -> float | None:
        self._at = start
        left = self._schedule.remaining_estimate(datetime.fromtimestamp(start, timezone.utc)).total_seconds()
        return start + left if left < _YEAR else None


def fingerprint(schedule: Any) -> str:
    """Name of a schedule's class, with a digest of what it was made with, or with its own ``mark`` if it has one."""
    kind = f"{type(schedule).__module__}.{type(schedule).__qualname__}"
    mark = getattr(schedule, "mark", None)
    if isinstance(mark, str):
        return f"{kind}:{mark}"
    made = {key: value for key, value in getattr(schedule, "__dict__", {}).items() if key not in _NOT_TIMING}
    return f"{kind}:{hashlib.sha256(_text(made).encode()).hexdigest()[:16]}"


def _text(value: Any) -> str:
    """The same for equal values in every process."""
    if value is None or isinstance(value, str | bytes | bool | int | float | timedelta | date | time_of_day):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{_text(key)}: {_text(item)}" for key, item in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _copy(schedule: Any) -> Any:
    """A copy whose clock can be set; the thing itself, if it is none of Celery's.

    ``copy.copy`` would call its ``__reduce__``, which a subclass seldom keeps in step with its ``__init__``.
    """
    kind = type(schedule)
    if not isinstance(schedule, BaseSchedule) or any(vars(base).get("__slots__") for base in kind.__mro__):
        return schedule
    copied: Any = object.__new__(kind)
    vars(copied).update(vars(schedule))
    return copied


def _ceil(instant: float) -> float:
    """The first whole millisecond not earlier; what a sum of floats is off by does not count."""
    return math.ceil(round(instant * 1000, 3)) / 1000
