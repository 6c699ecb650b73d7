"""``beat_schedule`` of the configuration, put among the tasks in the database, as django-celery-beat does.

What an entry says wins whenever a beat begins to lead; only what differs is written. Whether a task is
enabled and when it last ran are not the entry's to say, and no row is ever deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, maybe_schedule
from django.db import transaction
from django.utils.timezone import now
from django_celery_beat.models import PeriodicTask, PeriodicTasks
from kombu.utils.json import dumps, loads

from celery_hardened.beat.cause import cause
from celery_hardened.beat.entries import schedule_of
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Problem
from celery_hardened.contrib.django.models import NO_LIMIT, POLICY_FIELDS, SchedulePolicy
from celery_hardened.contrib.django.schedules.rows import column
from celery_hardened.contrib.django.schedules.timing import instant, moment
from celery_hardened.contrib.django.schedules.timing_rows import MODELS, TimingRows, says, spec_of
from celery_hardened.errors import ConfigurationError

#: Columns that an entry may say beside Celery's own keys, as django-celery-beat lets it.
_MORE = ("description", "one_off", "start_time", "enabled")

_JSON = {"args": "[]", "kwargs": "{}", "headers": "{}"}

#: Names of one query.
_PAGE = 500


@dataclass(slots=True)
class _Wanted:
    """What an entry says of its row."""

    kind: str
    spec: tuple[tuple[str, Any], ...]
    columns: dict[str, Any]
    at_first: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)


class Entries:
    """The entries of one app.

    Args:
        defaults: Policy of an entry that says nothing itself; it is not written.
    """

    def __init__(self, app: Celery, alias: str, defaults: Policy) -> None:
        self._app = app
        self._alias = alias
        self._defaults = defaults

    def install(self) -> list[Problem]:
        """Write what differs; the entries that cannot be written, and why.

        Raises:
            DatabaseError: Nothing was written.
        """
        wanted: dict[str, _Wanted] = {}
        problems = []
        for name, entry in self._all():
            try:
                wanted[name] = self._wanted(name, entry)
            except ConfigurationError as problem:
                problems.append(Problem(name, str(problem)))
            except Exception as problem:  # noqa: BLE001 - an entry may hold anything
                problems.append(Problem(name, f"the entry cannot be kept ({cause(problem)})."))
        names = sorted(wanted)
        for first in range(0, len(names), _PAGE):
            self._write({name: wanted[name] for name in names[first : first + _PAGE]})
        return problems

    def _all(self) -> Iterator[tuple[str, Any]]:
        entries = self._app.conf.beat_schedule or {}
        if self._app.conf.result_expires and "celery.backend_cleanup" not in entries:
            options = {"expire_seconds": 12 * 3600}
            cleanup = {"task": "celery.backend_cleanup", "schedule": crontab(minute="0", hour="4"), "options": options}
            yield "celery.backend_cleanup", cleanup
        yield from ((str(name), entry) for name, entry in entries.items())

    # --- what is wanted ---------------------------------------------------------------------------------------

    def _wanted(self, name: str, entry: Any) -> _Wanted:
        if isinstance(entry, ScheduleEntry):
            entry = {key: getattr(entry, key) for key in ("task", "schedule", "args", "kwargs", "options")}
        if not isinstance(entry, Mapping):
            raise ConfigurationError(f"it is a {type(entry).__name__}; an entry of beat_schedule is a dict.")
        more = {key: entry[key] for key in _MORE if key in entry}
        entry = {key: value for key, value in entry.items() if key not in more}
        read = schedule_of(name, entry, app=self._app, defaults=self._defaults)
        if isinstance(read, Problem):
            raise ConfigurationError(read.text)
        schedule = maybe_schedule(entry["schedule"], bool(entry.get("relative")), app=self._app)
        kind, spec = spec_of(schedule, entry.get("timezone") or self._app.timezone)
        at_first = {"enabled": more.pop("enabled")} if "enabled" in more else {}
        if kind == "clocked":
            more.setdefault("one_off", True)
        columns = {
            "task": read.task,
            "args": dumps(list(read.args)),
            "kwargs": dumps(dict(read.kwargs)),
            **_options(read.options),
            **more,
        }
        policy = {key: entry[key] for key in POLICY_FIELDS if key in entry}
        if policy.get("catchup_window", 0.0) is None:
            policy["catchup_window"] = NO_LIMIT
        return _Wanted(kind, spec, columns, at_first, policy)

    # --- what is written -------------------------------------------------------------------------------------

    def _write(self, wanted: dict[str, _Wanted]) -> None:
        with transaction.atomic(using=self._alias):
            there = {
                task.name: task
                for task in PeriodicTask._base_manager.using(self._alias)
                .filter(name__in=wanted)
                .select_related(*MODELS)
                # As it is stored: one that nobody knows would fail the query, and with it all other entries.
                .defer("crontab__timezone")
                .annotate(stored_zone=column("timezone"))
            }
            rows = TimingRows(self._alias)
            changed = self._create({name: want for name, want in wanted.items() if name not in there}, rows)
            for name, task in there.items():
                changed += self._update(task, wanted[name], rows)
            changed += self._write_policies(wanted)
            if changed:
                PeriodicTasks._base_manager.using(self._alias).update_or_create(
                    ident=1, defaults={"last_update": now()}
                )

    def _create(self, wanted: dict[str, _Wanted], rows: TimingRows) -> int:
        made = [
            PeriodicTask(name=name, **want.columns, **want.at_first, **{want.kind: rows.row(want.kind, want.spec)})
            for name, want in wanted.items()
        ]
        PeriodicTask._base_manager.using(self._alias).bulk_create(made)
        return len(made)

    def _update(self, task: Any, want: _Wanted, rows: TimingRows) -> int:
        differ = {name: value for name, value in want.columns.items() if not _equal(name, getattr(task, name), value)}
        timed = getattr(task, want.kind)
        if timed is None or not says(timed, want.spec, task.stored_zone):
            differ[want.kind] = rows.row(want.kind, want.spec)
        differ |= {kind: None for kind in MODELS if kind != want.kind and getattr(task, f"{kind}_id") is not None}
        if differ:
            own = PeriodicTask._base_manager.using(self._alias).filter(pk=task.pk)
            own.update(**differ, date_changed=now())
        return len(differ)

    def _write_policies(self, wanted: dict[str, _Wanted]) -> int:
        said = {name: want.policy for name, want in wanted.items() if want.policy}
        if not said:
            return 0
        tasks = PeriodicTask._base_manager.using(self._alias).filter(name__in=said)
        policies = SchedulePolicy._base_manager.using(self._alias)
        there = {policy.pk: policy for policy in policies.filter(periodic_task__name__in=said)}
        changed = 0
        for pk, name in tasks.values_list("pk", "name"):
            policy = there.get(pk)
            if policy is None:
                policies.bulk_create([SchedulePolicy(periodic_task_id=pk, **said[name])])
                changed += 1
            elif differ := {key: value for key, value in said[name].items() if getattr(policy, key) != value}:
                changed += policies.filter(pk=pk).update(**differ)
        return changed


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of ``apply_async``'s options.

    Raises:
        ConfigurationError: One of them has no column.
    """
    options = dict(options)
    columns = {name: options.pop(name, None) for name in ("queue", "exchange", "routing_key", "priority")}
    columns["headers"] = dumps(options.pop("headers", None) or {})
    expires = options.pop("expires", None)
    seconds = options.pop("expire_seconds", None)
    if isinstance(expires, datetime):
        columns["expires"], expires = moment(instant(expires)), None
    if isinstance(expires, timedelta):
        expires = expires.total_seconds()
    columns["expire_seconds"] = seconds if expires is None else round(expires)
    if options:
        raise ConfigurationError(
            f"django-celery-beat's tables have no column for its options {', '.join(sorted(map(str, options)))}. "
            "Say them on the task."
        )
    return columns


def _equal(name: str, there: Any, wanted: Any) -> bool:
    if name in _JSON:
        try:
            return bool(loads(there or _JSON[name]) == loads(wanted))
        except ValueError:
            return False
    return bool((there or None) == (wanted or None)) if isinstance(wanted, str | None) else bool(there == wanted)
