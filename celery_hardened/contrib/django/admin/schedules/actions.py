"""Run now, pause, resume, enable, disable. Each is written to the admin's log."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from django import forms
from django.contrib import admin
from django.utils import timezone
from django_celery_beat.models import PeriodicTasks

from celery_hardened.beat.schedule import Problem
from celery_hardened.beat.store import BeatStore
from celery_hardened.contrib.django.admin.schedules.acting import Acting, WhyForm, moment_field
from celery_hardened.contrib.django.schedules.reading import Reading
from celery_hardened.contrib.django.schedules.rows import rows_of
from celery_hardened.errors import NotFiredError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.beat import policy_of
from celery_hardened.pipeline.beat_by_hand import ByHand


class PauseForm(WhyForm):
    """Why, and until when."""

    until = moment_field("Until", required=False, help_text="Empty: until it is resumed.")

    def clean_until(self) -> Any:
        until = self.cleaned_data["until"]
        if until is not None and until.timestamp() <= time.time():
            raise forms.ValidationError("This moment is over. Give one that is to come, or none.")
        return until


class Actions(Acting):
    """Actions for a ``ModelAdmin`` of ``PeriodicTask``. All are POST only, as every action is."""

    def has_run_permission(self, request: Any) -> bool:
        """May the user run tasks now?"""
        return self._may(request, "run_schedule")

    def has_pause_permission(self, request: Any) -> bool:
        """May the user pause and resume?"""
        return self._may(request, "pause_schedule")

    @admin.action(description="Run selected tasks now", permissions=["run"])  # type: ignore[untyped-decorator]
    def run_tasks(self, request: Any, queryset: Any) -> None:
        """Fire each once more, under an id of its own; their own slots are fired all the same."""
        if self._are_too_many(request, queryset):
            return
        rows = rows_of(queryset.db, [task.pk for task in queryset])
        with ExitStack() as stack:

            def prepared(hardening: Hardening) -> Callable[[Any], str]:
                self.celery_app.loader.import_default_modules()
                reading = Reading(hardening.app, policy_of(hardening.settings))
                hand = stack.enter_context(closing(ByHand(hardening, by=request.user.get_username())))

                def run(task: Any) -> str:
                    schedule = reading.schedule_of(rows[task.pk], time.time())
                    if schedule is None:
                        raise NotFiredError(task.name, "it was to run once, and has run")
                    if isinstance(schedule, Problem):
                        raise NotFiredError(task.name, schedule.text.rstrip("."))
                    return f"Run now, as task {hand.trigger(schedule)}."

                return run

            self._each(request, [task for task in queryset if task.pk in rows], prepared)

    @admin.action(description="Pause selected tasks…", permissions=["pause"])  # type: ignore[untyped-decorator]
    def pause_tasks(self, request: Any, queryset: Any) -> Any:
        """Ask for a reason and an end first, on a page of its own."""
        if self._are_too_many(request, queryset):
            return None
        form = PauseForm(request.POST if "pause" in request.POST else None)
        if form.is_valid():
            until = form.cleaned_data["until"]
            why, ends = form.cleaned_data["why"], None if until is None else round(until.timestamp(), 3)
            told = "until it is resumed" if until is None else f"until {until:%Y-%m-%d %H:%M %Z}".rstrip()
            by = request.user.get_username()

            def pause(store: BeatStore, task: Any) -> str:
                store.pause(task.name, by=by, why=why, until=ends)
                return f"Paused {told}: {why}"

            self._with_store(request, queryset, pause)
            return None
        zone = timezone.get_current_timezone_name()
        return self._page(request, "pause.html", title="Pause periodic tasks", form=form, tasks=queryset, zone=zone)

    @admin.action(description="Resume selected tasks", permissions=["pause"])  # type: ignore[untyped-decorator]
    def resume_tasks(self, request: Any, queryset: Any) -> None:
        """End their pauses."""
        if self._are_too_many(request, queryset):
            return

        def resume(store: BeatStore, task: Any) -> str:
            store.resume(task.name)
            return "Resumed."

        self._with_store(request, queryset, resume)

    @admin.action(description="Enable selected tasks", permissions=["change"])  # type: ignore[untyped-decorator]
    def enable_tasks(self, request: Any, queryset: Any) -> None:
        """Those that were disabled start now: nothing older is made up for."""
        self._set_enabled(request, queryset, True, date_changed=timezone.now())

    @admin.action(description="Disable selected tasks", permissions=["change"])  # type: ignore[untyped-decorator]
    def disable_tasks(self, request: Any, queryset: Any) -> None:
        self._set_enabled(request, queryset, False, last_run_at=None)

    def _set_enabled(self, request: Any, queryset: Any, enabled: bool, **also: Any) -> None:
        tasks = list(queryset.filter(enabled=not enabled))
        pks = [task.pk for task in tasks]
        queryset.model._base_manager.using(queryset.db).filter(pk__in=pks).update(enabled=enabled, **also)
        PeriodicTasks.update_changed()
        word = "Enabled" if enabled else "Disabled"
        for task in tasks:
            self.log_change(request, task, f"{word}.")
        self.message_user(request, f"{word}: {len(tasks)}.")
