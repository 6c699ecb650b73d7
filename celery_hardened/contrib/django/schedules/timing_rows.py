"""From a Celery schedule to the row of django-celery-beat's that says the same: found, or made."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timezone, tzinfo
from typing import Any

from celery import schedules
from django_celery_beat.clockedschedule import clocked
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, SolarSchedule

from celery_hardened.contrib.django.schedules.timing import instant, moment
from celery_hardened.errors import ConfigurationError

#: Column of ``PeriodicTask`` → the model it refers to.
MODELS: dict[str, Any] = {
    "interval": IntervalSchedule,
    "crontab": CrontabSchedule,
    "solar": SolarSchedule,
    "clocked": ClockedSchedule,
}

_CRON_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


def spec_of(schedule: Any, zone: tzinfo) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The kind of *schedule*, and the columns that say it.

    Args:
        zone: Of a crontab that has none of its own.

    Raises:
        ConfigurationError: These tables cannot hold it.
    """
    if isinstance(schedule, schedules.crontab):
        spec = [(name, _cron_text(getattr(schedule, f"_orig_{name}"))) for name in _CRON_FIELDS]
        return "crontab", (*spec, ("timezone", _name(vars(schedule).get("tz") or zone)))
    if isinstance(schedule, schedules.solar):
        # Their columns have six places: a finer one would never be found again.
        place = [("latitude", round(float(schedule.lat), 6)), ("longitude", round(float(schedule.lon), 6))]
        return "solar", (("event", schedule.event), *place)
    if isinstance(schedule, clocked):
        return "clocked", (("clocked_time", moment(instant(schedule.clocked_time))),)
    if type(schedule) is schedules.schedule:
        microseconds = round(schedule.run_every.total_seconds() * 1_000_000)
        if microseconds % 1_000_000:
            return "interval", (("every", microseconds), ("period", IntervalSchedule.MICROSECONDS))
        return "interval", (("every", microseconds // 1_000_000), ("period", IntervalSchedule.SECONDS))
    raise ConfigurationError(
        f"its schedule is a {type(schedule).__name__}, which django-celery-beat's tables cannot hold. "
        "Run it with `beat -S hardened`, which takes schedule classes of your own."
    )


class TimingRows:
    """Finds or makes the rows of one database; each once."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._found: dict[Any, Any] = {}

    def row(self, kind: str, spec: tuple[tuple[str, Any], ...]) -> Any:
        """One of possibly several that say the same: it is never deleted, nor changed."""
        key = (kind, spec)
        if key not in self._found:
            rows = MODELS[kind]._base_manager.using(self._alias)
            self._found[key] = rows.filter(**dict(spec)).order_by("pk").first() or rows.create(**dict(spec))
        return self._found[key]


def says(row: Any, spec: tuple[tuple[str, Any], ...], zone: str | None) -> bool:
    """Whether *row*, a crontab in *zone* if it is one, is timed so already."""
    return all(_same(zone if name == "timezone" else getattr(row, name), value) for name, value in spec)


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, float):
        return round(float(one), 6) == round(other, 6)
    return bool(one == other) or str(one) == str(other)


def _cron_text(field: Any) -> str:
    if isinstance(field, str) or not isinstance(field, Iterable):
        return str(field)
    return ",".join(map(str, sorted(field)))


def _name(zone: tzinfo) -> str:
    return "UTC" if zone is timezone.utc else str(zone)
