"""Timings, instants and policies in words. Pure, but for the zone of the host."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import TYPE_CHECKING

from celery_hardened.cli.selection import parse_moment

if TYPE_CHECKING:
    from celery_hardened.beat.policy import Policy
    from celery_hardened.beat.schedule import Schedule, When
    from celery_hardened.beat.wall_clock import WallClock

_AHEAD = re.compile(r"\+?(\d+(?:\.\d+)?[smhdw])")

#: Bits, first value, last value of a crontab's fields.
_FIELDS = (("minutes", 0, 59), ("hours", 0, 23), ("days", 1, 31), ("months", 1, 12), ("weekdays", 0, 6))


def timing(when: When) -> str:
    """``crontab 30 2 * * *, America/New_York``, ``every 90 s``."""
    from celery_hardened.beat.kinds import Every, zone_name
    from celery_hardened.beat.slots import Once
    from celery_hardened.beat.wall_clock import WallClock

    if isinstance(when, Every):
        round_times = f", from round times in {zone_name(when.relative)}" if when.relative is not None else ""
        return f"every {span(when.period)}{round_times}"
    slots = when.slots(0.0)
    if isinstance(slots, WallClock):
        return f"crontab {_crontab(slots)}, {zone_name(zone_of(when, timezone.utc))}"
    if isinstance(slots, Once):
        return f"once, {utc(slots.at)}"
    kind, _, rest = when.mark.partition(":")
    if kind == "solar":
        event, latitude, longitude = [*rest.split(":"), "", ""][:3]
        return f"solar {event} at {latitude}, {longitude}"
    return rest.partition(":")[0].rpartition(".")[2] or when.mark  # the name of a class of the user's own


def zone_of(when: When, otherwise: tzinfo) -> tzinfo:
    """The zone that *when* is read in."""
    from celery_hardened.beat.course import zone_read_in

    return zone_read_in(when, otherwise)


def zone_name_of(when: When, otherwise: tzinfo) -> str:
    from celery_hardened.beat.kinds import zone_name

    return zone_name(zone_of(when, otherwise))


def _crontab(slots: WallClock) -> str:
    """The five fields; not as they were written, but to the same effect."""
    said = []
    for name, first, last in _FIELDS:
        values = [value for value in range(first, last + 1) if getattr(slots, name) >> value & 1]
        clocked = name in ("minutes", "hours")
        said.append(_field(values, first, last, star=not clocked or not slots.fixed))
    # A wildcard whose step leaves one value, such as */59, makes it count elapsed time all the same.
    elapsed = not slots.fixed and not any(field.startswith("*") for field in said[:2])
    return " ".join(said) + (" by elapsed time" if elapsed else "")


def _field(values: list[int], first: int, last: int, *, star: bool) -> str:
    if len(values) == last - first + 1:
        return "*" if star else f"{first}-{last}"
    steps = {after - before for before, after in pairwise(values)}
    if star and len(steps) == 1:
        (step,) = steps
        if step > 1 and values[0] == first and values[-1] + step > last:
            return f"*/{step}"
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def span(seconds: float) -> str:
    """``90 s``, ``5 min``, ``2 h``, ``1 d``: in the largest unit that is exact."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def policy(schedule: Schedule, defaults: Policy) -> str:
    """What differs from *defaults*: ``overlap=skip, jitter=5``."""
    usual = asdict(defaults)
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in asdict(schedule.policy).items()
        if value != usual[name]
    )


def utc(instant: float | None) -> str:
    """An instant in UTC, with its milliseconds if it has any."""
    if instant is None:
        return "-"
    return f"{_local(instant, timezone.utc)}Z"


def local(instant: float | None, zone: tzinfo) -> str:
    """An instant as the clock in *zone* shows it, with how far that is from UTC."""
    if instant is None:
        return "-"
    offset = datetime.fromtimestamp(instant, zone).utcoffset() or timedelta()
    sign, minutes = "-" if offset < timedelta() else "+", abs(offset) // timedelta(minutes=1)
    return f"{_local(instant, zone)}{sign}{minutes // 60:02}:{minutes % 60:02}"


def _local(instant: float, zone: tzinfo) -> str:
    milliseconds = round(instant * 1000)
    try:
        at = datetime.fromtimestamp(milliseconds // 1000, zone)
    except (ValueError, OverflowError, OSError):
        return str(instant)
    return f"{at:%Y-%m-%dT%H:%M:%S}" + (f".{milliseconds % 1000:03}" if milliseconds % 1000 else "")


def moment(text: str, *, now: float) -> float:
    """An ISO 8601 date (UTC unless it says otherwise), ``2h`` ago, or ``+2h`` ahead.

    Raises:
        ValueError: It is none of these.
    """
    if text.strip().startswith("+"):
        return ahead(text, now=now)
    return round(parse_moment(text, now=now), 3)


def ahead(text: str, *, now: float) -> float:
    """An ISO 8601 date, or a duration from *now* on: ``2h`` or ``+2h``.

    Raises:
        ValueError: It is neither.
    """
    if duration := _AHEAD.fullmatch(text.strip()):
        return round(2 * now - parse_moment(duration[1], now=now), 3)
    return round(parse_moment(text, now=now), 3)
