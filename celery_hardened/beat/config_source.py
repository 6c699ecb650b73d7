"""``beat_schedule`` of the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from celery import Celery
from celery.schedules import crontab

from celery_hardened.beat.entries import schedule_of
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.errors import ConfigurationError

#: What Celery schedules itself, unless the app has an entry of that name.
_CLEANUP = "celery.backend_cleanup"


class ConfigSource:
    """The schedules of ``app.conf.beat_schedule``, which stay as they are for the life of the process.

    Args:
        defaults: Policy of an entry that says nothing itself.
    """

    def __init__(self, app: Celery, *, defaults: Policy) -> None:
        self._app = app
        self._defaults = defaults

    def open(self, woken: Callable[[], None]) -> None:  # noqa: ARG002 - nothing changes here
        """Read it now, so that a standby need not when it begins to lead. Nothing changes here."""
        self.load()

    def load(self) -> Sequence[Schedule | Problem]:
        return self._all

    @cached_property
    def _all(self) -> Sequence[Schedule | Problem]:
        entries = list(self._entries())
        times = Counter(name for name, _ in entries)
        twice = [
            Problem(name, f"{times[name]} entries have this name, written as text or otherwise. Rename all but one.")
            for name in times
            if times[name] > 1
        ]
        once = [(name, entry) for name, entry in entries if times[name] == 1]
        return [*twice, *(schedule_of(name, entry, app=self._app, defaults=self._defaults) for name, entry in once)]

    def _entries(self) -> Iterator[tuple[str, Any]]:
        entries = self._app.conf.beat_schedule or {}
        if not isinstance(entries, Mapping):
            raise ConfigurationError(
                f"beat_schedule is a {type(entries).__name__}; it is a dict of entries by the names of the schedules."
            )
        if _CLEANUP not in entries and self._app.conf.result_expires and not self._app.backend.supports_autoexpire:
            schedule, options = crontab(minute="0", hour="4"), {"expires": 12 * 3600}
            yield _CLEANUP, {"task": _CLEANUP, "schedule": schedule, "options": options}
        yield from ((str(name), entry) for name, entry in entries.items())

    def is_ready(self) -> bool:
        return True

    def changes(self) -> Sequence[Schedule | Problem]:
        return ()

    def lead(self, leading: bool) -> None:
        """The same for leader and standby."""

    def fired(self, schedule: Schedule, *, at: float) -> None:
        """The record in Redis says so already."""

    def close(self) -> None:
        """Holds nothing open."""
