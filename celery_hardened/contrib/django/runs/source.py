"""A ``Source`` that has run history kept of what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.source import Change, Source
from celery_hardened.contrib.django.runs.collector import Collector
from celery_hardened.signals import schedule_missed


class RecordedSource:
    """*source*, with *collector* beside it: it lives as long, and leads when that does."""

    def __init__(self, source: Source, collector: Collector, app: Any) -> None:
        self._source = source
        self._collector = collector
        self._app = app
        # Celery 5.6 takes a method of another object for the same receiver: the uid tells them apart.
        self._uid = f"{__name__}.{id(self)}"

    def open(self, woken: Callable[[], None]) -> None:
        schedule_missed.connect(self._missed, sender=self._app, dispatch_uid=self._uid)
        self._collector.open()
        self._source.open(woken)

    def load(self) -> Sequence[Schedule | Problem]:
        return self._source.load()

    def is_ready(self) -> bool:
        return self._source.is_ready()

    def changes(self) -> Sequence[Change]:
        return self._source.changes()

    def lead(self, leading: bool) -> None:
        self._source.lead(leading)
        self._collector.lead(leading)

    def fired(self, schedule: Schedule, *, at: float) -> None:
        self._source.fired(schedule, at=at)
        self._collector.moved(schedule.name)

    def _missed(self, schedule: str, **_: Any) -> None:
        self._collector.moved(schedule)

    def close(self) -> None:
        schedule_missed.disconnect(sender=self._app, dispatch_uid=self._uid)
        self._source.close()
        self._collector.close()
