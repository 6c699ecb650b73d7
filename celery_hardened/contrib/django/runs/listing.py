"""A page of run history: its rows, with what else has to be known of them in two statements more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Any

from celery import Celery
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db import router
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django_celery_beat.models import PeriodicTask

from celery_hardened.beat.course import zone_read_in
from celery_hardened.contrib.django.models import ScheduleRun
from celery_hardened.contrib.django.schedules.rows import rows_of
from celery_hardened.contrib.django.schedules.timing import when


@dataclass(frozen=True, slots=True)
class Around:
    """Of one row: the zone in which its schedule is read today, and where links lead; empty: nowhere."""

    zone: tzinfo = timezone.utc
    task: str = ""
    letter: str = ""


class Runs(ChangeList):  # type: ignore[misc]
    """The rows of one page know what is around them."""

    result_list: Any

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """An address that nobody can be asked for leads back to the list, as Django has it."""
        for name, values in request.GET.lists():
            if name != SEARCH_VAR and any("\0" in value for value in values):  # PostgreSQL takes none
                raise IncorrectLookupParameters
        return super().get_queryset(request, *args, **kwargs)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        runs = list(self.result_list)  # the query set keeps these very objects
        surround(runs, request, app=self.model_admin.celery_app, site=self.model_admin.admin_site.name)


def surround(runs: Iterable[ScheduleRun], request: HttpRequest, *, app: Celery, site: str) -> None:
    """Give each of *runs* its ``around``. Links are there for who may follow them."""
    runs = list(runs)
    tasks, zones = _schedules({run.schedule for run in runs}, app)
    user: Any = request.user
    sees_tasks = user.has_perm("django_celery_beat.view_periodictask") or user.has_perm(
        "django_celery_beat.change_periodictask"
    )
    sees_letters = user.has_perm("celery_hardened.view_deadletter")
    for run in runs:
        pk = tasks.get(run.schedule)
        run.around = Around(
            zones.get(run.schedule, app.timezone),
            _page(site, "django_celery_beat_periodictask_change", pk) if pk is not None and sees_tasks else "",
            _page(site, "celery_hardened_deadletter_change", quote(run.dead_letter))
            if run.dead_letter and sees_letters
            else "",
        )


def _schedules(names: set[str], app: Celery) -> tuple[Mapping[str, int], Mapping[str, tzinfo]]:
    """By name the keys of those that are there still, and their zones."""
    if not names:
        return {}, {}
    alias = router.db_for_read(PeriodicTask)
    tasks = dict(PeriodicTask._base_manager.using(alias).filter(name__in=names).values_list("name", "pk"))
    zones: dict[str, tzinfo] = {}
    for row in rows_of(alias, tasks.values()).values():
        try:
            zones[row.name] = zone_read_in(when(row, app.timezone), app.timezone)
        except Exception:  # noqa: BLE001 - a row that cannot be read is told of on its own page
            zones[row.name] = app.timezone
    return tasks, zones


def _page(site: str, name: str, key: object) -> str:
    try:
        return str(reverse(f"admin:{name}", args=[key], current_app=site))
    except NoReverseMatch:  # this site has no such pages
        return ""


def shown(at: datetime | None, zone: tzinfo) -> str:
    """*at* as it is read in *zone*, with its distance from UTC."""
    if at is None:
        return "-"
    local = at.astimezone(zone)
    offset = local.strftime("%z")
    return f"{local:%Y-%m-%d %H:%M:%S} {offset[:3]}:{offset[3:5]}"
