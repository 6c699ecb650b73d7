"""Skip the next slot of periodic tasks, and take that back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timezone
from typing import Any

from django.contrib import admin, messages

from celery_hardened.beat.course import course, zone_read_in
from celery_hardened.beat.look import Look
from celery_hardened.beat.names import Keys
from celery_hardened.beat.preview import Line
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.skip import NotSkippedError, next_to_skip
from celery_hardened.beat.skip_store import SkipStore
from celery_hardened.contrib.django.admin.schedules.acting import Acting, WhyForm
from celery_hardened.contrib.django.admin.schedules.standing import asked, line_of, utc
from celery_hardened.contrib.django.schedules.reading import Reading
from celery_hardened.contrib.django.schedules.rows import Row, rows_of
from celery_hardened.errors import ConfigurationError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.beat import policy_of

#: Milliseconds. Longer numbers, which nobody has been shown, ``int`` may refuse.
_SLOT = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class ToSkip:
    """What the page says of one task."""

    pk: int
    name: str
    local: Line | None = None
    zone: str = ""
    utc: str = ""
    slot: str = ""
    """For the form: milliseconds since the epoch; empty: nothing can be skipped."""

    problem: str = ""


class SkipActions(Acting):
    """Two actions, of one permission."""

    def has_skip_permission(self, request: Any) -> bool:
        """May the user skip the next slot, and take that back?"""
        return self._may(request, "skip_schedule")

    @admin.action(description="Skip the next slot of selected tasks…", permissions=["skip"])  # type: ignore[untyped-decorator]
    def skip_tasks(self, request: Any, queryset: Any) -> Any:
        """Show which slots those are and ask for a reason, on a page of its own."""
        if self._are_too_many(request, queryset):
            return None
        form = WhyForm(request.POST if "skip" in request.POST else None)
        rows = rows_of(queryset.db, [task.pk for task in queryset])
        if form.is_valid():
            shown = {pk: slot for pk in rows if _SLOT.fullmatch(slot := request.POST.get(f"slot-{pk}", ""))}
            why, by = form.cleaned_data["why"], request.user.get_username()

            def prepared(hardening: Hardening) -> Callable[[Any], str]:
                store, reading = _store(hardening), Reading(hardening.app, policy_of(hardening.settings))

                def skip(task: Any) -> str:
                    schedule = _usable(reading, rows[task.pk], task.enabled)
                    only = int(shown[task.pk]) / 1000
                    skipped = store.skip_next(schedule, by=by, why=why, now=time.time(), only=only)
                    return f"Skipped the slot of {utc(skipped.slot)}: {why}"

                return skip

            self._each(request, [task for task in queryset if task.pk in shown], prepared)
            return None
        try:
            hardening = Hardening.expect(self.celery_app)
            there, trouble = asked(hardening, [row.name for row in rows.values()])
        except ConfigurationError as problem:
            trouble = str(problem)
        if trouble:
            self.message_user(request, trouble, messages.ERROR)
            return None
        found = _to_skip(hardening, there, queryset, rows)
        return self._page(
            request,
            "skip.html",
            title="Skip the next slot",
            form=form,
            tasks=found,
            possible=any(one.slot for one in found),
        )

    @admin.action(description="Take back the skip of selected tasks", permissions=["skip"])  # type: ignore[untyped-decorator]
    def unskip_tasks(self, request: Any, queryset: Any) -> None:
        """Their next slots are fired after all."""
        if self._are_too_many(request, queryset):
            return

        def prepared(hardening: Hardening) -> Callable[[Any], str]:
            store = _store(hardening)
            skips = store.skips()

            def unskip(task: Any) -> str:
                skip = skips.get(task.name)
                if skip is None:
                    raise NotSkippedError(task.name, "no slot of it is skipped")
                if not store.unskip(task.name, skip.slot):
                    raise NotSkippedError(task.name, f"its slot of {utc(skip.slot)} is over")
                return f"The slot of {utc(skip.slot)} is not skipped any more."

            return unskip

        self._each(request, list(queryset), prepared)


def _store(hardening: Hardening) -> SkipStore:
    return SkipStore(hardening.redis, Keys(hardening.prefix))


def _usable(reading: Reading, row: Row, enabled: bool) -> Schedule:
    schedule = reading.schedule_of(row, time.time())
    if not enabled:
        raise NotSkippedError(row.name, "it is not enabled")
    if schedule is None:
        raise NotSkippedError(row.name, "it was to run once, and has run")
    if isinstance(schedule, Problem):
        raise NotSkippedError(row.name, schedule.text.rstrip("."))
    return schedule


def _to_skip(hardening: Hardening, there: Look, queryset: Any, rows: dict[int, Row]) -> list[ToSkip]:
    reading = Reading(hardening.app, policy_of(hardening.settings))
    now, found = time.time(), []
    for task in queryset:
        if task.pk not in rows:
            continue
        try:
            schedule = _usable(reading, rows[task.pk], task.enabled)
            slot = next_to_skip(schedule, course(schedule, there.records.get(task.name), now), now)
        except NotSkippedError as refused:
            found.append(ToSkip(task.pk, task.name, problem=f"{refused.problem[:1].upper()}{refused.problem[1:]}."))
            continue
        except Exception as problem:  # noqa: BLE001 - one row must not fail the page
            text = f"Its next slot cannot be found ({type(problem).__name__})."
            found.append(ToSkip(task.pk, task.name, problem=text))
            continue
        zone = zone_read_in(schedule.when, hardening.app.timezone)
        skip = there.skips.get(task.name)
        is_skipped = skip is not None and skip.slot == slot
        found.append(
            ToSkip(
                pk=task.pk,
                name=task.name,
                local=line_of(slot, zone),
                zone=str(zone),
                utc=line_of(slot, timezone.utc).local,
                slot="" if is_skipped else str(round(slot * 1000)),
                problem=f"It is skipped already, by {skip.by}: {skip.why}" if skip and is_skipped else "",
            )
        )
    return found
