"""The policy of a periodic task, in that task's form."""

from __future__ import annotations

import time
from typing import Any

from django import forms
from django.contrib import admin
from django.forms.models import BaseInlineFormSet

from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Schedule
from celery_hardened.contrib.django.admin.schedules.form import row_of
from celery_hardened.contrib.django.models import POLICY_FIELDS, SchedulePolicy, policy_options
from celery_hardened.contrib.django.schedules.reading import Reading
from celery_hardened.errors import ConfigurationError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.beat import policy_of
from celery_hardened.pipeline.beat_refusal import refusal_of


class SchedulePolicyFormSet(BaseInlineFormSet):  # type: ignore[misc]
    """Refuses a policy that contradicts itself or the app's settings, or that its task cannot hold."""

    celery_app: Any = None

    def clean(self) -> None:
        super().clean()
        hardening = Hardening.of(self.celery_app)
        for form in self.forms:
            data = getattr(form, "cleaned_data", None)
            if hardening is None or not data or data.get("DELETE") or form.errors:
                continue
            columns = {name: data.get(name) for name in POLICY_FIELDS}
            try:
                Policy.of(policy_options(columns), otherwise=policy_of(hardening.settings))
            except ConfigurationError as refused:
                raise forms.ValidationError(str(refused)) from refused
            reading = Reading(hardening.app, policy_of(hardening.settings))
            schedule = reading.schedule_of(row_of(self.instance, columns), time.time())
            # What is wrong with the task itself is said by its own form.
            refusal = refusal_of(schedule, hardening) if isinstance(schedule, Schedule) else None
            if refusal is not None:
                raise forms.ValidationError(f"{refusal[:1].upper()}{refusal[1:]}")


class SchedulePolicyInline(admin.StackedInline):  # type: ignore[misc]
    """Shown to those who may see ``SchedulePolicy``."""

    model = SchedulePolicy
    formset = SchedulePolicyFormSet
    fields = POLICY_FIELDS
    extra = 1  # there is none to begin with, and no script is needed to get one
    max_num = 1
    celery_app: Any = None

    def get_formset(self, request: Any, obj: Any = None, **kwargs: Any) -> Any:
        made = super().get_formset(request, obj, **kwargs)
        made.celery_app = self.celery_app
        return made
