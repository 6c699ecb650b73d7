"""From a schedule as Celery knows it to its slots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, solar
from celery.schedules import schedule as interval
from celery.utils.time import LocalTimezone, delta_resolution

from celery_hardened.beat.cause import cause
from celery_hardened.beat.own import Own, Solar, fingerprint
from celery_hardened.beat.schedule import When
from celery_hardened.beat.slots import Interval, Once, Slots
from celery_hardened.beat.wall_clock import wall_clock
from celery_hardened.beat.zone import SystemZone
from celery_hardened.errors import ConfigurationError

#: A schedule that is due more often is a mistake, and would keep a beat busy with nothing else. Milliseconds.
_SHORTEST = 10

#: Whose schedules we know the slots of. A class that decides elsewhere what is due is the user's own.
_KNOWN = ("celery.schedules", "django_celery_beat.tzcrontab", "django_celery_beat.clockedschedule")

_DECIDES = ("is_due", "remaining_estimate", "remaining_delta")


@dataclass(slots=True, unsafe_hash=True)
class Fixed:
    """Slots that hang on no anchor. Never changed; many schedules share one."""

    mark: str
    _slots: Slots

    def slots(self, anchor: float) -> Slots:  # noqa: ARG002 - others count from it
        return self._slots

    def anchored(self, instant: float) -> float:
        return round(instant, 3)


@dataclass(slots=True, unsafe_hash=True)
class Every:
    """Slots a *period* (seconds) apart. Never changed; many schedules share one."""

    mark: str
    period: float
    relative: tzinfo | None = None
    """Round the anchor down to the day, hour or minute of this zone, as the period is at least so long."""

    def slots(self, anchor: float) -> Slots:
        return Interval(anchor, self.period)

    def anchored(self, instant: float) -> float:
        if self.relative is None:
            return round(instant, 3)
        local = datetime.fromtimestamp(instant, self.relative)
        rounded: datetime = delta_resolution(local, timedelta(seconds=self.period))
        return round(min(rounded.timestamp(), instant), 3)


def when_of(schedule: Any, *, app_timezone: tzinfo, zone: str | tzinfo | None = None) -> When:
    """The timing of *schedule*.

    Args:
        schedule: A ``crontab``, ``schedule`` or ``solar``, seconds, a ``timedelta``, a clocked schedule of
            django-celery-beat, or an object of the user's own class with ``is_due(last_run_at)``.
        app_timezone: What a crontab is in that says nothing else, and what ``relative=True`` rounds in.
        zone: The entry's own ``timezone``.

    Raises:
        ConfigurationError: It cannot be used; the text says why.
    """
    here = app_timezone if zone is None else _zone(zone)
    decides_itself = isinstance(schedule, BaseSchedule) and _decides_itself(schedule)
    if isinstance(schedule, crontab) and not decides_itself:
        return _crontab(schedule, _known(here if zone is not None else _zone_of(schedule, here)))
    if isinstance(schedule, timedelta | float | int) and not isinstance(schedule, bool):
        schedule = interval(_period(schedule))
    if isinstance(schedule, interval) and not decides_itself:
        relative = bool(schedule.relative)
        if zone is not None and not relative:
            raise ConfigurationError("it has a 'timezone', but an interval counts elapsed time, the same in each zone.")
        return _every(_milliseconds(schedule.run_every), _known(here) if relative else None)
    if zone is not None:
        raise ConfigurationError("it has a 'timezone', but only a crontab, or a relative interval, is read in one.")
    if isinstance(schedule, solar) and not decides_itself:
        return _solar(schedule)
    if isinstance(clocked := getattr(schedule, "clocked_time", None), datetime):
        return _once(clocked)
    if callable(getattr(schedule, "is_due", None)):
        return Fixed(f"own:{fingerprint(schedule)}", Own(schedule, here))
    raise ConfigurationError(
        f"a {type(schedule).__name__} is no schedule: give seconds as a number, a timedelta, crontab(...), or an "
        f"object with is_due()."
    )


def may_be_schedule(said: Any) -> bool:
    """Is *said* of a kind that ``when_of`` may take? Celery would set ``app`` on a text, and take ``True`` for 1 s."""
    if isinstance(said, timedelta | float | int):
        return not isinstance(said, bool)
    return callable(getattr(said, "is_due", None)) or isinstance(getattr(said, "clocked_time", None), datetime)


def zone_name(zone: tzinfo) -> str:
    """The name of *zone*, the same in every process."""
    if isinstance(zone, SystemZone | LocalTimezone):
        return "local"
    name = getattr(zone, "key", None) or getattr(zone, "zone", None) or str(zone)
    # No address in memory.
    return str(name) if " at 0x" not in str(name) else f"{type(zone).__module__}.{type(zone).__qualname__}"


# --- one kind each ---


def _crontab(schedule: Any, zone: tzinfo) -> When:
    fixed = not (str(schedule._orig_minute).startswith("*") or str(schedule._orig_hour).startswith("*"))
    slots = wall_clock(
        minute=schedule.minute,
        hour=schedule.hour,
        day_of_month=schedule.day_of_month,
        month_of_year=schedule.month_of_year,
        day_of_week=schedule.day_of_week,
        fixed=fixed,
        zone=zone,
    )
    return _fixed_crontab(slots, zone_name(zone))


@lru_cache(maxsize=16_384)
def _fixed_crontab(slots: Any, zone: str) -> Fixed:
    fields = (slots.minutes, slots.hours, slots.days, slots.months, slots.weekdays)
    return Fixed(
        f"crontab:{':'.join(f'{mask:x}' for mask in fields)}:{'fixed' if slots.fixed else 'elapsed'}:{zone}", slots
    )


@lru_cache(maxsize=16_384)
def _every(milliseconds: int, relative: tzinfo | None) -> Every:
    mark = f"every:{milliseconds}" + (f":relative:{zone_name(relative)}" if relative is not None else "")
    return Every(mark, milliseconds / 1000, relative)


def _solar(schedule: Any) -> Fixed:
    return Fixed(f"solar:{schedule.event}:{float(schedule.lat)!r}:{float(schedule.lon)!r}", Solar(schedule))


def _once(at: datetime) -> Fixed:
    # Naive is UTC, as Celery has it.
    instant = round((at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)).timestamp(), 3)
    return Fixed(f"once:{round(instant * 1000)}", Once(instant))


def _period(seconds: timedelta | float) -> timedelta:
    if isinstance(seconds, timedelta):
        return seconds
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise ConfigurationError(f"a period of {seconds} seconds is none.") from None


def _milliseconds(period: Any) -> int:
    if not isinstance(period, timedelta):
        raise ConfigurationError("its interval has no period: give seconds or a timedelta.")
    milliseconds = round(period / timedelta(milliseconds=1))
    if milliseconds < _SHORTEST:
        raise ConfigurationError(f"a period of {period.total_seconds():g} s is too short: 0.01 s is the least.")
    return milliseconds


# --- zones ---


def _zone(zone: str | tzinfo) -> tzinfo:
    if isinstance(zone, tzinfo):
        return zone
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, TypeError, OSError, AttributeError):
        raise ConfigurationError(f"there is no time zone {zone!r}: give a name such as 'Europe/Berlin'.") from None


def _zone_of(schedule: Any, otherwise: tzinfo) -> tzinfo:
    """What a crontab itself says: the zone of django-celery-beat's, or of what its ``nowfun`` returns."""
    if any(kind.__module__ == "django_celery_beat.tzcrontab" for kind in type(schedule).__mro__):
        return _zone(schedule.tz)
    if schedule.nowfun is None:
        return otherwise
    try:
        now = schedule.nowfun()
    except Exception as problem:
        raise ConfigurationError(f"its nowfun raises {cause(problem)}") from problem
    return getattr(now, "tzinfo", None) or otherwise


def _known(zone: tzinfo) -> tzinfo:
    """Celery's local time is off by hours near a change of the clock; the system knows better."""
    return SystemZone() if isinstance(zone, LocalTimezone) else zone


def _decides_itself(schedule: BaseSchedule) -> bool:
    return any(
        name in vars(schedule) or getattr(getattr(schedule, name, None), "__module__", _KNOWN[0]) not in _KNOWN
        for name in _DECIDES
    )
