"""Fields for a moment: a date and a time, each with a name of its own."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.widgets import AdminSplitDateTime


def name_parts(form: Any) -> None:
    """Name the two inputs of each moment in *form* for whoever does not see them: Django labels neither."""
    for name, field in form.fields.items():
        if isinstance(field.widget, AdminSplitDateTime):
            label = field.label or name.replace("_", " ").capitalize()
            for one, part in zip(field.widget.widgets, ("date", "time"), strict=True):
                one.attrs["aria-label"] = f"{label}, {part}"
