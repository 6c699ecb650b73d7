"""The coming slots of what is typed into a form and not saved."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from celery import Celery

from celery_hardened.beat.preview import Line
from celery_hardened.contrib.django.admin.schedules.form import row_of
from celery_hardened.contrib.django.admin.schedules.standing import preview_of
from celery_hardened.contrib.django.models import POLICY_FIELDS

#: Fields that say when a task is due: with another value it starts anew when it is saved.
_TIMING = {"interval", "crontab", "solar", "clocked", "start_time", "expires", "one_off"}


class Unsaved:
    """A formset that is never valid and has no errors: Django's view checks the form, shows it again, and does not
    save it."""

    errors: Sequence[Any] = ()

    def is_valid(self) -> bool:
        return False

    def non_form_errors(self) -> Sequence[str]:
        return ()


def asks_for_preview(request: Any) -> bool:
    """Does *request* come from the button that previews?"""
    return request.method == "POST" and "_preview" in request.POST


def preview_of_form(app: Celery, context: Any) -> tuple[Sequence[Line], str]:
    """As ``preview_of``, of the form in the *context* of its page."""
    form = context["adminform"].form
    formsets = [one.formset for one in context["inline_admin_formsets"]]
    if form.errors or not all(one.is_valid() for one in formsets):
        return (), "What is typed in has errors. Correct them first."
    columns: dict[str, Any] = {}
    for formset in formsets:
        for data in getattr(formset, "cleaned_data", []):
            if not data.get("DELETE"):
                columns |= {name: data[name] for name in POLICY_FIELDS if name in data}
    row = row_of(form.instance, columns)
    if form.instance.pk is None or _TIMING & set(form.changed_data):
        row = row._replace(date_changed=datetime.now(timezone.utc))
    return preview_of(app, row)
