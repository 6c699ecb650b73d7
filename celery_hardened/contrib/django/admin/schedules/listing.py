"""The list of periodic tasks: its columns, and one look at the tables and one at Redis for a page of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe

from celery_hardened.beat.preview import Line
from celery_hardened.contrib.django.admin.schedules.standing import Page, Standing, page_of, utc
from celery_hardened.contrib.django.models import ScheduleRun
from celery_hardened.contrib.django.schedules.rows import rows_of

_EMPTY = "-"


class Schedules(ChangeList):  # type: ignore[misc]
    """The tasks of one page carry how they stand."""

    #: For the template: who leads, and whether Redis has answered.
    beat: Page
    result_list: Any

    def get_results(self, request: Any) -> None:
        super().get_results(request)
        tasks = list(self.result_list)  # the query set keeps these very objects
        rows = rows_of(self.queryset.db, [task.pk for task in tasks])
        self.beat = page_of(self.model_admin.celery_app, rows)
        for task in tasks:
            task.standing = self.beat.standings.get(task.pk, Standing())
        ids = {task.standing.task_id for task in tasks} - {""}
        ended = dict(ScheduleRun.objects.filter(task_id__in=ids).values_list("task_id", "outcome")) if ids else {}
        for task in tasks:
            task.ended = ended.get(task.standing.task_id, "")


class Columns:
    """Columns of the list, for a ``ModelAdmin`` whose list is ``Schedules``."""

    @admin.display(description="next slots")  # type: ignore[untyped-decorator]
    def next_slots(self, task: Any) -> Any:
        """In the schedule's own zone, and in UTC if that is another one."""
        found: Standing = task.standing
        if not task.enabled:
            return _EMPTY
        skipped = found.skip.slot if found.skip else None
        said = []
        for line, other in zip(found.next, found.utc, strict=True):
            mark = " (skipped)" if line.at == skipped else ""
            lines = [f"{_local(line)} {found.zone}", f"{_local(other)} UTC"]
            own = format_html_join(mark_safe("<br>"), "{}", [(one,) for one in dict.fromkeys(lines)])
            said.append((own, mark))
        return format_html_join("", "<div>{}{}</div>", said) if said else _EMPTY

    @admin.display(description="last slot")  # type: ignore[untyped-decorator]
    def last_slot(self, task: Any) -> Any:
        line = task.standing.last_slot
        return _local(line) if line else _EMPTY

    @admin.display(description="last outcome")  # type: ignore[untyped-decorator]
    def last_outcome(self, task: Any) -> str:
        """What became of the latest slot or run by hand; and how its task ended, once the run history has that."""
        said = [one for one in (task.standing.outcome, task.ended) if one]
        return ": ".join(said) or _EMPTY

    @admin.display(description="missed")  # type: ignore[untyped-decorator]
    def missed(self, task: Any) -> Any:
        """Slots that no beat could fire in time, made up for or not."""
        found: Standing = task.standing
        if found.missed is None:
            return _EMPTY
        return f"{found.missed}, and {found.overdue} overdue" if found.overdue else found.missed

    @admin.display(description="skipped")  # type: ignore[untyped-decorator]
    def skipped(self, task: Any) -> Any:
        """Slots passed over on purpose: paused, skipped by hand, the last run was not over, timed anew."""
        return _EMPTY if task.standing.skipped is None else task.standing.skipped

    @admin.display(description="running now")  # type: ignore[untyped-decorator]
    def running_now(self, task: Any) -> str:
        """The id of the run. Only of tasks that may not overlap is it known."""
        found: Standing = task.standing
        return found.running or (_EMPTY if not found.may_overlap else "not watched")

    @admin.display(description="state")  # type: ignore[untyped-decorator]
    def state(self, task: Any) -> Any:
        """Paused or to be skipped, by whom, why and until when; what is wrong with it."""
        found: Standing = task.standing
        said: Sequence[str] = [found.problem] if found.problem else []
        if pause := found.paused:
            until = "until it is resumed" if pause.until is None else f"until {utc(pause.until)}"
            said = [f"paused {until} by {pause.by}: {pause.why}", *said]
        if skip := found.skip:
            said = [f"the slot of {utc(skip.slot)} is skipped by {skip.by}: {skip.why}", *said]
        return format_html_join("", "<div>{}</div>", [(one,) for one in said]) if said else "ok"


def _local(line: Line) -> str:
    return line.local if line.offset == "+00:00" else f"{line.local} {line.offset}"
