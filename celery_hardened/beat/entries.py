"""One entry of ``beat_schedule``, read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, maybe_schedule

from celery_hardened.beat.cause import cause
from celery_hardened.beat.kinds import may_be_schedule, when_of
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.errors import ConfigurationError

#: Celery's own keys of an entry.
_CELERYS = (
    "task",
    "schedule",
    "args",
    "kwargs",
    "options",
    "relative",
    "name",
    "app",
    "last_run_at",
    "total_run_count",
)

#: Ours.
_OURS = ("missed_run", "catchup_window", "max_catchup", "grace", "overlap", "jitter", "timezone")

_KNOWN = frozenset((*_CELERYS, *_OURS))


def schedule_of(name: str, entry: Any, *, app: Celery, defaults: Policy) -> Schedule | Problem:
    """*entry* as a schedule, or why it is none. Raises nothing: one bad entry is one bad entry."""
    try:
        return _read(name, _as_mapping(entry), app=app, defaults=defaults)
    except ConfigurationError as problem:
        return Problem(name, str(problem))
    except Exception as problem:  # noqa: BLE001 - whatever a user's entry or schedule class raises is its problem
        return Problem(name, f"the entry cannot be read ({cause(problem)}).")


def _as_mapping(entry: Any) -> Mapping[str, Any]:
    if isinstance(entry, ScheduleEntry):
        return {key: getattr(entry, key) for key in ("task", "schedule", "args", "kwargs", "options")}
    if not isinstance(entry, Mapping):
        raise ConfigurationError(f"it is a {type(entry).__name__}; an entry of beat_schedule is a dict.")
    return entry


def _read(name: str, entry: Mapping[str, Any], *, app: Celery, defaults: Policy) -> Schedule:
    for key in entry:
        if key not in _KNOWN:
            near = difflib.get_close_matches(str(key), (*_CELERYS, *_OURS), n=1)
            raise ConfigurationError(
                f"unknown key {key!r}.{f' Did you mean {near[0]!r}?' if near else ''} The keys are those of "
                f"Celery's beat_schedule and {', '.join(_OURS)}."
            )
    for key in ("task", "schedule"):
        if entry.get(key) in (None, ""):
            raise ConfigurationError(f"it has no {key!r}.")
    schedule = entry["schedule"]
    if may_be_schedule(schedule):
        schedule = maybe_schedule(schedule, bool(entry.get("relative")), app=app)
    when = when_of(schedule, app_timezone=app.timezone, zone=entry.get("timezone"))
    if isinstance(schedule, crontab) and (deadline := app.conf.beat_cron_starting_deadline) is not None:
        defaults = replace(defaults, catchup_window=max(float(deadline), defaults.grace))
    said = {key: entry[key] for key in _OURS if key in entry and key != "timezone"}
    return Schedule(
        name=name,
        task=str(getattr(entry["task"], "name", entry["task"])),
        args=tuple(entry.get("args") or ()),
        kwargs=dict(entry.get("kwargs") or {}),
        options=dict(entry.get("options") or {}),
        when=when,
        policy=Policy.of(said, otherwise=defaults) if said else _by_default(defaults),
    )


@lru_cache(maxsize=16)
def _by_default(defaults: Policy) -> Policy:
    """Checked once, and shared by the many entries that say nothing themselves."""
    return Policy.of({}, otherwise=defaults)
