"""Filters of run history. None of them asks more than one statement, however long the history is."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import router
from django_celery_beat.models import PeriodicTask

from celery_hardened.metrics.outcome import MEANING

#: Schedules that the filter offers, the first by name. Any other is found by the search.
MOST = 100

_UNTOLD = "untold"


class ScheduleFilter(admin.SimpleListFilter):  # type: ignore[misc]
    """By the name of the schedule, also of one that is gone."""

    title = "schedule"
    parameter_name = "schedule"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 - Django's signature
        tasks = PeriodicTask._base_manager.using(router.db_for_read(PeriodicTask))
        names = [*tasks.order_by("name").values_list("name", flat=True)[:MOST]]
        asked = self.value()
        if asked and asked not in names:
            names.insert(0, asked)
        return [(name, name) for name in names]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002 - Django's signature
        return queryset.filter(schedule=self.value()) if self.value() else queryset


class OutcomeFilter(admin.SimpleListFilter):  # type: ignore[misc]
    """By how the task has ended, or that no worker has told of it."""

    title = "outcome"
    parameter_name = "outcome"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 - Django's signature
        return [(_UNTOLD, "fired, and nothing told"), *((name, name.replace("_", " ")) for name in MEANING)]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002 - Django's signature
        if self.value() == _UNTOLD:
            return queryset.filter(outcome="", verdict="fired")
        return queryset.filter(outcome=self.value()) if self.value() else queryset


class LetterFilter(admin.SimpleListFilter):  # type: ignore[misc]
    """Did it become a dead letter?"""

    title = "dead letter"
    parameter_name = "letter"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 - Django's signature
        return [("yes", "became one"), ("no", "did not")]

    def queryset(self, request: Any, queryset: Any) -> Any:  # noqa: ARG002 - Django's signature
        if self.value() == "yes":
            return queryset.exclude(dead_letter="")
        return queryset.filter(dead_letter="") if self.value() == "no" else queryset
