"""When a row is due: from its columns to ``When``. Tasks that share a timing share the object."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache

from celery import schedules
from django.conf import settings
from django.utils.timezone import get_default_timezone
from django_celery_beat.clockedschedule import clocked

from celery_hardened.beat.kinds import when_of
from celery_hardened.beat.schedule import When
from celery_hardened.beat.slots import Interval, Slots
from celery_hardened.contrib.django.schedules.rows import Row
from celery_hardened.errors import ConfigurationError

_PERIODS = ("days", "hours", "minutes", "seconds", "microseconds")


def zone_aware() -> bool:
    """django-celery-beat's setting: crontabs have zones of their own, and its other columns are in local time."""
    return bool(getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True))


def naive_zone() -> tzinfo:
    """What django-celery-beat takes a time without a zone for, where ``USE_TZ`` is off."""
    return get_default_timezone() if zone_aware() else timezone.utc


def instant(moment: datetime, naive: tzinfo | None = None) -> float:
    """*moment* as seconds since the epoch. *naive*: its zone if it says none."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=naive or naive_zone())
    return round(moment.timestamp(), 3)


def moment(at: float) -> datetime:
    """An instant, as Django stores it."""
    if settings.USE_TZ:
        return datetime.fromtimestamp(at, timezone.utc)
    return datetime.fromtimestamp(at, naive_zone()).replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class From:
    """An interval that begins with its first slot at *start*, in whatever process, and whenever it was last run."""

    start: float
    period: float
    mark: str

    def slots(self, anchor: float) -> Slots:  # noqa: ARG002 - others count from it
        return Interval(round(self.start - self.period, 3), self.period)

    def anchored(self, instant: float) -> float:  # noqa: ARG002 - others start at it
        return self.start


def when(row: Row, app_timezone: tzinfo) -> When:
    """The timing of *row*. Of several, the one that django-celery-beat would take.

    Raises:
        ConfigurationError: It has none, or one that cannot be.
    """
    if row.interval_id is not None:
        if row.every is None or row.period is None:
            raise _dangling("interval", row.interval_id)
        if row.start_time is not None:
            return _interval_from(row.every, row.period, instant(row.start_time), app_timezone)
        return _interval(row.every, row.period, app_timezone)
    if row.crontab_id is not None:
        if row.minute is None or row.hour is None:
            raise _dangling("crontab", row.crontab_id)
        fields = (row.minute, row.hour, row.day_of_week, row.day_of_month, row.month_of_year)
        return _crontab(fields, row.timezone if zone_aware() else None, app_timezone)
    if row.solar_id is not None:
        if row.event is None or row.latitude is None or row.longitude is None:
            raise _dangling("solar event", row.solar_id)
        return _solar(row.event, float(row.latitude), float(row.longitude), app_timezone)
    if row.clocked_id is not None:
        if row.clocked_time is None:
            raise _dangling("clocked time", row.clocked_id)
        at = datetime.fromtimestamp(instant(row.clocked_time), timezone.utc)
        return when_of(clocked(at), app_timezone=app_timezone)
    raise ConfigurationError("it has no schedule. Give it an interval, a crontab, a solar event or a clocked time.")


def _dangling(kind: str, pk: int) -> ConfigurationError:
    return ConfigurationError(f"its {kind} (id {pk}) is not there any more. Choose another one.")


def _period(every: int, period: str) -> float:
    if period not in _PERIODS:
        raise ConfigurationError(f"its interval has the period {period!r}; it can be {', '.join(_PERIODS)}.")
    try:
        return timedelta(**{period: every}).total_seconds()
    except OverflowError:
        raise ConfigurationError(f"its interval of {every} {period} is beyond all dates.") from None


@lru_cache(maxsize=16_384)
def _interval(every: int, period: str, app_timezone: tzinfo) -> When:
    return when_of(schedules.schedule(_period(every, period)), app_timezone=app_timezone)


def _interval_from(every: int, period: str, start: float, app_timezone: tzinfo) -> When:
    plain = _interval(every, period, app_timezone)
    return From(start, round(_period(every, period), 3), plain.mark)


class _Crontab(schedules.crontab):  # type: ignore[misc]
    """A crontab whose fields are expanded once for each text: Celery takes longer for one than we for the row."""

    def __init__(self, fields: tuple[str | None, ...]) -> None:
        super(schedules.crontab, self).__init__()
        for name, text in zip(_CRON_FIELDS, fields, strict=True):
            setattr(self, f"_orig_{name}", text)
            setattr(self, name, _expanded(name, text))


_CRON_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


@lru_cache(maxsize=4096)
def _expanded(name: str, text: str | None) -> frozenset[int]:
    return frozenset(getattr(schedules.crontab(**{name: text}), name))


@lru_cache(maxsize=16_384)
def _crontab(fields: tuple[str | None, ...], zone: str | None, app_timezone: tzinfo) -> When:
    try:
        made = _Crontab(fields)
    except (ValueError, TypeError, schedules.ParseException) as problem:
        raise ConfigurationError(f"its crontab {' '.join(map(str, fields))!r} cannot be read: {problem}.") from problem
    return when_of(made, app_timezone=app_timezone, zone=zone or None)


@lru_cache(maxsize=4096)
def _solar(event: str, latitude: float, longitude: float, app_timezone: tzinfo) -> When:
    return when_of(schedules.solar(event, latitude, longitude), app_timezone=app_timezone)
