"""What every action on periodic tasks shares: one task after the other, refusals told, what was done logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.widgets import AdminTextInputWidget
from django.template.response import TemplateResponse

from celery_hardened.beat.names import Keys
from celery_hardened.beat.store import BeatStore
from celery_hardened.errors import ConfigurationError, HardenedError, StoreUnavailableError
from celery_hardened.hardening import Hardening

#: Tasks of one action. "All that match" may be thousands, and nobody means to run those at once.
MOST = 100


class WhyForm(forms.Form):  # type: ignore[misc]
    """Why."""

    why = forms.CharField(
        label="Reason",
        max_length=500,
        help_text="For the admin's log, and for whoever looks later.",
        widget=AdminTextInputWidget,
    )


def _has_a_date(moment: Any) -> None:
    """Not so near the ends of the calendar that it has no date in another zone."""
    if not 1970 <= moment.year < 2200:
        raise forms.ValidationError("Give a year from 1970 to 2199.")


def moment_field(label: str, **more: Any) -> forms.SplitDateTimeField:
    """A day and a time, in whichever zone is the current one. The browser's own pickers, no script."""
    widget = forms.SplitDateTimeWidget(
        date_attrs={"type": "date", "aria-label": f"{label}, day"},
        time_attrs={"type": "time", "step": "1", "aria-label": f"{label}, time"},
        date_format="%Y-%m-%d",
        time_format="%H:%M:%S",
    )
    return forms.SplitDateTimeField(
        label=label,
        widget=widget,
        # What those pickers send, in any language.
        input_date_formats=["%Y-%m-%d"],
        input_time_formats=["%H:%M:%S", "%H:%M"],
        validators=[_has_a_date],
        **more,
    )


class Acting:
    """For a ``ModelAdmin`` of ``PeriodicTask``."""

    celery_app: Any
    log_change: Any
    message_user: Any
    has_change_permission: Any
    has_view_permission: Any
    admin_site: Any
    opts: Any

    def _may(self, request: Any, codename: str) -> bool:
        return bool(request.user.has_perm(f"celery_hardened.{codename}"))

    def _with_store(self, request: Any, queryset: Any, step: Callable[[BeatStore, Any], str]) -> None:
        def prepared(hardening: Hardening) -> Callable[[Any], str]:
            store = BeatStore(hardening.redis, Keys(hardening.prefix), history=hardening.settings.beat_history)
            return lambda task: step(store, task)

        self._each(request, list(queryset), prepared)

    def _each(self, request: Any, tasks: list[Any], prepare: Callable[[Hardening], Callable[[Any], str]]) -> None:
        """Do what *prepare* returns for each task, and log what it says. A task's refusal is told, and the next one
        is dealt with; a store that is away ends it all."""
        try:
            step = prepare(Hardening.expect(self.celery_app))
            for task in tasks:
                try:
                    said = step(task)
                except StoreUnavailableError:
                    raise
                except HardenedError as refused:
                    self.message_user(request, str(refused), messages.ERROR)
                    continue
                self.log_change(request, task, said)
                self.message_user(request, f"{task.name}: {said}")
        except (ConfigurationError, StoreUnavailableError) as problem:
            self.message_user(request, str(problem), messages.ERROR)

    def _are_too_many(self, request: Any, queryset: Any) -> bool:
        count = queryset.count()
        if count > MOST:
            text = f"You have selected {count} tasks; this is done to {MOST} at most. Nothing was done."
            self.message_user(request, text, messages.ERROR)
        return bool(count > MOST)

    def _page(self, request: Any, template: str, **context: Any) -> Any:
        """A page of ours in the admin's frame."""
        whole = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
            **context,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/celery_hardened/{template}", whole)
