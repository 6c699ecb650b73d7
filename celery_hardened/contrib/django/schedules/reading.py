"""From a row to a schedule, or to what is wrong with it. One bad row is one bad row: it is not written to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone, tzinfo
from typing import Any

from celery import Celery
from django.utils.timezone import get_default_timezone
from kombu.utils.json import loads

from celery_hardened.beat.cause import cause
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.contrib.django.models import POLICY_FIELDS, policy_options
from celery_hardened.contrib.django.schedules.rows import Row
from celery_hardened.contrib.django.schedules.timing import instant, when
from celery_hardened.errors import ConfigurationError

_ROUTING = ("queue", "exchange", "routing_key")


class Reading:
    """Reads rows for one app.

    Args:
        defaults: Policy of a row that says nothing itself.
    """

    def __init__(self, app: Celery, defaults: Policy) -> None:
        self._zone: tzinfo = app.timezone
        self._defaults = defaults

    def schedule_of(self, row: Row, now: float, edited: float | None = None) -> Schedule | Problem | None:
        """*row* as a schedule; ``None``: a one-off that has run already. Raises nothing.

        Args:
            edited: The row was not there, or timed otherwise, at this instant: it starts no earlier.
        """
        try:
            return self._read(row, now, edited)
        except ConfigurationError as problem:
            return Problem(row.name, str(problem))
        except Exception as problem:  # noqa: BLE001 - a column may hold what nobody thought of
            return Problem(row.name, f"its row cannot be read ({cause(problem)}).")

    def _read(self, row: Row, now: float, edited: float | None) -> Schedule | None:
        if row.one_off and row.total_run_count > 0:
            # django-celery-beat counts the run first, and switches the row off the next time it looks.
            return None
        return Schedule(
            name=row.name,
            task=row.task,
            args=tuple(_json(row.args, "arguments", list)),
            kwargs=_json(row.kwargs, "keyword arguments", dict),
            options=_options(row),
            when=when(row, self._zone),
            policy=self._policy(row),
            start=-math.inf if row.start_time is None else instant(row.start_time),
            end=math.inf if row.expires is None else instant(row.expires),
            one_off=bool(row.one_off),
            not_before=_not_before(row, now, edited),
            last_run=None if row.last_run_at is None else instant(row.last_run_at),
            row=row.pk,
        )

    def _policy(self, row: Row) -> Policy:
        said = policy_options({name: getattr(row, name) for name in POLICY_FIELDS})
        return Policy.of(said, otherwise=self._defaults) if said else self._defaults


def _not_before(row: Row, now: float, edited: float | None) -> float | None:
    """Where a row starts from that is new, was switched on again, or timed anew."""
    changed = now if row.date_changed is None else instant(row.date_changed, get_default_timezone())
    if edited is not None:
        # Saved since then: that is when. Edited past the model, or by a host whose clock is off: then, not now,
        # for a slot between the two would be lost.
        since = changed if edited <= changed <= now else edited
    elif row.last_run_at is None:
        since = min(changed, now)
    else:
        return None
    if row.last_run_at is None and row.clocked_time is not None:
        # It has one slot in all, and has not had it; "at once" is in the past by the time the row is saved.
        return min(since, instant(row.clocked_time) - 0.001)
    return since


def _options(row: Row) -> dict[str, Any]:
    options: dict[str, Any] = {name: value for name in _ROUTING if (value := getattr(row, name))}
    if row.priority is not None:
        options["priority"] = row.priority
    if row.expires is not None:
        options["expires"] = datetime.fromtimestamp(instant(row.expires), timezone.utc)
    elif row.expire_seconds:
        options["expires"] = row.expire_seconds
    headers: Mapping[str, Any] = _json(row.headers, "headers", dict)
    options["headers"] = {**headers, "periodic_task_name": row.name}
    return options


def _json(text: str | None, what: str, kind: type[Any]) -> Any:
    if not text or text in ("[]", "{}"):
        return kind()
    try:
        # Kombu's own reader knows dates and the like, and is slow: it takes half of the time of a row.
        found = loads(text) if "__type__" in text else json.loads(text)
    except ValueError:
        raise ConfigurationError(f"its {what} are no JSON. Correct them.") from None
    if not isinstance(found, kind):
        wanted = "a list, such as [1, 2]" if kind is list else 'an object, such as {"a": 1}'
        raise ConfigurationError(f"its {what} are JSON of another kind: they have to be {wanted}.")
    return found
