"""Periodic tasks in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django_celery_beat.admin import PeriodicTaskAdmin as Theirs

from celery_hardened.contrib.django.admin.schedules.actions import Actions
from celery_hardened.contrib.django.admin.schedules.backfill import BackfillPages
from celery_hardened.contrib.django.admin.schedules.form import PeriodicTaskForm
from celery_hardened.contrib.django.admin.schedules.inline import SchedulePolicyInline
from celery_hardened.contrib.django.admin.schedules.listing import Columns, Schedules
from celery_hardened.contrib.django.admin.schedules.skip import SkipActions
from celery_hardened.contrib.django.admin.schedules.standing import preview_of
from celery_hardened.contrib.django.admin.schedules.typed import Unsaved, asks_for_preview, preview_of_form
from celery_hardened.contrib.django.schedules.rows import rows_of


class PeriodicTaskAdmin(Actions, SkipActions, BackfillPages, Columns, Theirs):  # type: ignore[misc]
    """django-celery-beat's, with how each schedule stands, the policy in the form, and actions that are logged.

    ``celery_app`` is the hardened app; by default Celery's current one.
    """

    form = PeriodicTaskForm
    inlines = (SchedulePolicyInline,)
    list_display = (
        "name", "enabled", "state", "next_slots", "last_slot", "last_outcome", "missed", "skipped", "running_now",
        "scheduler",
    )  # fmt: skip
    actions = (
        "run_tasks", "pause_tasks", "resume_tasks", "skip_tasks", "unskip_tasks", "backfill_task", "enable_tasks",
        "disable_tasks",
    )  # fmt: skip
    list_filter = ("enabled", "one_off", "task")
    date_hierarchy = None
    list_per_page = 100
    list_max_show_all = 100
    change_list_template = "admin/celery_hardened/schedules.html"
    change_form_template = "admin/celery_hardened/schedule.html"
    fieldsets = (
        (None, {"fields": ("name", "regtask", "task", "elsewhere", "enabled", "description")}),
        *Theirs.fieldsets[1:],
    )

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Past theirs, which imports ``CELERY_BEAT_SCHEDULER`` as a path to warn of another scheduler than its own, and
        fails at a name such as ``hardened-django``. Who leads is what our page tells."""
        return super(Theirs, self).changelist_view(request, extra_context)

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - Django's signature
        return Schedules

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        made = super().get_form(request, obj, change=change, **kwargs)
        made.celery_app = self.celery_app
        return made

    def _create_formsets(self, request: Any, obj: Any, change: bool) -> Any:
        formsets, instances = super()._create_formsets(request, obj, change)
        return ([*formsets, Unsaved()] if asks_for_preview(request) else formsets), instances

    def get_inline_instances(self, request: Any, obj: Any = None) -> list[admin.options.InlineModelAdmin]:
        found: list[Any] = super().get_inline_instances(request, obj)
        for one in found:
            if isinstance(one, SchedulePolicyInline):
                one.celery_app = self.celery_app
        return found

    def render_change_form(
        self, request: Any, context: Any, add: bool = False, change: bool = False, form_url: str = "", obj: Any = None
    ) -> Any:
        """With the slots to come: of the task as it is saved, or of what was typed in, if that was asked for.
        Permissions were looked at by now."""
        context["may_backfill"] = obj is not None and self.has_backfill_permission(request, obj)
        if asks_for_preview(request):
            context["is_typed"] = True
            context["preview"], context["preview_trouble"] = preview_of_form(self.celery_app, context)
        elif obj is not None:
            row = rows_of(obj._state.db, [obj.pk]).get(obj.pk)
            if row is not None:
                context["preview"], context["preview_trouble"] = preview_of(self.celery_app, row)
        return super().render_change_form(request, context, add=add, change=change, form_url=form_url, obj=obj)
