"""Run history in Django's admin: read only, by who may view it."""

from __future__ import annotations

from datetime import timezone
from typing import Any

from celery import current_app
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, StreamingHttpResponse
from django.urls import path, reverse
from django.utils.html import format_html

from celery_hardened.contrib.django.models import ScheduleRun
from celery_hardened.contrib.django.runs.export import lines
from celery_hardened.contrib.django.runs.filters import LetterFilter, OutcomeFilter, ScheduleFilter
from celery_hardened.contrib.django.runs.listing import Runs, shown, surround

_EMPTY = "-"


@admin.register(ScheduleRun)
class ScheduleRunAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """What became of each slot. Nothing here changes a row; pruning deletes them.

    ``celery_app`` is the app whose zone intervals are read in; by default Celery's current one.
    """

    celery_app: Any = current_app

    list_display = (
        "slot_in_zone", "periodic_task", "kind", "fired_or_why_not", "outcome_told", "started_in_zone", "seconds",
        "attempts", "letter", "task_id",
    )  # fmt: skip
    list_display_links = ("slot_in_zone",)
    list_filter = (ScheduleFilter, "verdict", OutcomeFilter, LetterFilter, "kind")
    date_hierarchy = "slot"
    ordering = ("-slot", "-id")
    search_fields = ("task_id",)
    list_per_page = 100
    list_max_show_all = 100
    show_full_result_count = False
    actions = None
    change_list_template = "admin/celery_hardened/schedule_runs.html"
    fieldsets = (
        (
            "The slot",
            {
                "fields": (
                    "periodic_task", "slot_in_zone", "kind", "fired_or_why_not", "decided_in_zone", "first_in_zone",
                    "count", "missed", "by", "term",
                )
            },
        ),
        (
            "The task",
            {
                "fields": (
                    "task_id", "outcome_told", "started_in_zone", "ended_in_zone", "seconds", "attempts", "deaths",
                    "worker", "error", "letter",
                )
            },
        ),
    )  # fmt: skip
    readonly_fields = (
        "periodic_task", "slot_in_zone", "fired_or_why_not", "decided_in_zone", "first_in_zone", "outcome_told",
        "started_in_zone", "ended_in_zone", "seconds", "letter",
    )  # fmt: skip

    # --- pages --------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        export = self.admin_site.admin_view(self.export_view)
        return [path("export/", export, name="celery_hardened_schedulerun_export"), *super().get_urls()]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:  # noqa: ARG002 - Django's signature
        return Runs

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            surround([found], request, app=self.celery_app, site=self.admin_site.name)
        return found

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002
        term = search_term.strip().replace("\0", "")
        return (queryset.filter(Q(task_id=term) | Q(schedule__icontains=term)) if term else queryset), False

    def export_view(self, request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
        """All that the filters select, as CSV. It is read while it is sent."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            rows = self.get_changelist_instance(request).get_queryset(request)
        except IncorrectLookupParameters:
            opts = f"{self.opts.app_label}_{self.opts.model_name}"
            return HttpResponseRedirect(reverse(f"admin:{opts}_changelist", current_app=self.admin_site.name))
        response = StreamingHttpResponse(lines(rows), content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = 'attachment; filename="schedule-runs.csv"'
        response["X-Content-Type-Options"] = "nosniff"
        return response

    # --- columns ------------------------------------------------------------------------------------------------

    @admin.display(description="slot", ordering="slot")  # type: ignore[untyped-decorator]
    def slot_in_zone(self, run: Any) -> Any:
        """In the zone of its schedule, and in UTC."""
        zone = run.around.zone
        if str(zone) in ("UTC", "Etc/UTC") or zone is timezone.utc:
            return f"{shown(run.slot, timezone.utc)[:-7]} UTC"
        return format_html("{} {}<br>{} UTC", shown(run.slot, zone), str(zone), shown(run.slot, timezone.utc)[:-7])

    @admin.display(description="schedule", ordering="schedule")  # type: ignore[untyped-decorator]
    def periodic_task(self, run: Any) -> Any:
        link = run.around.task
        return format_html('<a href="{}">{}</a>', link, run.schedule) if link else run.schedule

    @admin.display(description="fired, or why not", ordering="verdict")  # type: ignore[untyped-decorator]
    def fired_or_why_not(self, run: Any) -> str:
        said = str(run.get_verdict_display())
        if run.count > 1:
            said = f"{said} ({run.count} slots from {shown(run.first, run.around.zone)} on)"
        return f"{said}, stands for {run.missed} missed before it" if run.missed else said

    @admin.display(description="outcome", ordering="outcome")  # type: ignore[untyped-decorator]
    def outcome_told(self, run: Any) -> str:
        return run.outcome.replace("_", " ") or ("nothing told" if run.verdict == "fired" else _EMPTY)

    @admin.display(description="started", ordering="started")  # type: ignore[untyped-decorator]
    def started_in_zone(self, run: Any) -> str:
        return shown(run.started, run.around.zone)

    @admin.display(description="ended")  # type: ignore[untyped-decorator]
    def ended_in_zone(self, run: Any) -> str:
        return shown(run.ended, run.around.zone)

    @admin.display(description="decided")  # type: ignore[untyped-decorator]
    def decided_in_zone(self, run: Any) -> str:
        return shown(run.decided, run.around.zone)

    @admin.display(description="first slot passed over")  # type: ignore[untyped-decorator]
    def first_in_zone(self, run: Any) -> str:
        return shown(run.first, run.around.zone)

    @admin.display(description="seconds", ordering="duration")  # type: ignore[untyped-decorator]
    def seconds(self, run: Any) -> str:
        return _EMPTY if run.duration is None else f"{run.duration:.3f}"

    @admin.display(description="dead letter")  # type: ignore[untyped-decorator]
    def letter(self, run: Any) -> Any:
        link = run.around.letter
        return format_html('<a href="{}">{}</a>', link, run.dead_letter) if link else (run.dead_letter or _EMPTY)

    # --- who may what -------------------------------------------------------------------------------------------

    def has_add_permission(self, *_: Any, **__: Any) -> bool:
        return False

    def has_change_permission(self, *_: Any, **__: Any) -> bool:
        return False

    def has_delete_permission(self, *_: Any, **__: Any) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, *_: Any, **__: Any) -> bool:
        return bool(request.user.has_perm("celery_hardened.view_schedulerun"))
