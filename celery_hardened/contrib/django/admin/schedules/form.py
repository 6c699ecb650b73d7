"""The form of a periodic task: refuses, with a sentence, what a beat could not fire."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from typing import Any

from django import forms
from django_celery_beat.admin import PeriodicTaskForm as TheirForm
from django_celery_beat.models import PeriodicTask
from kombu.utils.json import loads

from celery_hardened.contrib.django.admin.schedules.moment import name_parts
from celery_hardened.contrib.django.schedules.rows import Row
from celery_hardened.contrib.django.schedules.timing import when
from celery_hardened.errors import ConfigurationError

#: Columns of a timing → the column of ``PeriodicTask`` that refers to it.
_TIMINGS = {
    "interval": ("every", "period"),
    "crontab": ("minute", "hour", "day_of_week", "day_of_month", "month_of_year", "timezone"),
    "solar": ("event", "latitude", "longitude"),
    "clocked": ("clocked_time",),
}


class PeriodicTaskForm(TheirForm):  # type: ignore[misc]
    """django-celery-beat's, with its checks and ours."""

    celery_app: Any = None

    elsewhere = forms.BooleanField(
        label="Task of another app", required=False, help_text="Take a name that this app does not know."
    )

    class Meta:
        model = PeriodicTask
        exclude = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name_parts(self)

    def clean(self) -> Any:
        # Not theirs: it fails with a KeyError where the name of the task was refused already.
        data = forms.ModelForm.clean(self) or self.cleaned_data
        name = data["task"] = data.get("regtask") or data.get("task") or ""
        if not name and "task" not in self.errors:
            self.add_error("task", "Say which task is to run.")
        elif name and not data.get("elsewhere") and name != self.initial.get("task"):
            self._check_known(name)
        if data.get("expire_seconds") is not None and data.get("expires"):
            self.add_error("expires", "Say when the message expires, or after how many seconds; not both.")
        return data

    def _check_known(self, name: str) -> None:
        self.celery_app.loader.import_default_modules()
        if name in self.celery_app.tasks:
            return
        near = difflib.get_close_matches(name, list(self.celery_app.tasks), n=1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        self.add_error(
            "task", f"This app knows no task {name!r}.{guess} If it is another app's, tick “Task of another app”."
        )

    def clean_args(self) -> str:
        return self._json("args", list, 'a list, such as [1, "a"]')

    def clean_kwargs(self) -> str:
        return self._json("kwargs", dict, 'an object, such as {"a": 1}')

    def clean_headers(self) -> str:
        return self._json("headers", dict, 'an object, such as {"a": 1}')

    def _json(self, field: str, kind: type[Any], wanted: str) -> str:
        text: str = self.cleaned_data[field] or ""
        try:
            found = loads(text) if text else kind()
        except (ValueError, RecursionError) as problem:
            raise forms.ValidationError(f"This is no JSON ({problem}). It has to be {wanted}.") from problem
        if not isinstance(found, kind):
            raise forms.ValidationError(f"This is JSON of another kind. It has to be {wanted}.")
        return text

    def _post_clean(self) -> None:
        super()._post_clean()
        # Now the instance has what was typed in. One timing only: the model has said so otherwise.
        chosen = [name for name in _TIMINGS if getattr(self.instance, f"{name}_id", None) is not None]
        if len(chosen) != 1 or chosen[0] not in self.fields or self.errors:
            return
        try:
            # Read in which zone, does not matter for whether it can be read.
            slots = when(row_of(self.instance), self.celery_app.timezone).slots(time.time())
        except ConfigurationError as refused:
            text = str(refused)
            self.add_error(chosen[0], f"{text[:1].upper()}{text[1:]}")
            return
        if chosen[0] == "crontab" and slots.after(time.time()) is None:
            self.add_error("crontab", "This crontab is never due: there is no such day. Choose another one.")


def row_of(task: Any, policy: Mapping[str, Any] | None = None) -> Row:
    """*task* as it would be read if it were saved now, with the columns of *policy*."""
    columns: dict[str, Any] = dict.fromkeys(Row._fields)
    columns |= {name: getattr(task, name) for name in Row._fields if hasattr(task, name)}
    for kind, names in _TIMINGS.items():
        timing = getattr(task, kind)
        if timing is not None:
            columns |= {name: getattr(timing, name) for name in names}
    if columns["timezone"] is not None:
        columns["timezone"] = str(columns["timezone"])
    return Row(**{**columns, **(policy or {})})
