"""Backfill a range of one periodic task: choose it, see its slots, fire those that are ticked.

Nothing is fired twice by asking twice. A slot is ticked together with how often it was sent when the page was made;
if the history says by then that it was sent again, it is left out. Two requests at the same moment are told apart
by the mark that a run by hand leaves in Redis for an hour.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timezone as fixed
from datetime import tzinfo
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone

from celery_hardened.beat.course import course, zone_read_in
from celery_hardened.beat.names import Keys, task_id_of
from celery_hardened.beat.past import Became, Past, became, past_slots
from celery_hardened.beat.preview import Line, preview
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.slots import Between
from celery_hardened.beat.store import BeatStore
from celery_hardened.contrib.django.admin.schedules.acting import Acting, moment_field
from celery_hardened.contrib.django.admin.schedules.standing import line_of, utc
from celery_hardened.contrib.django.runs.known import lines_of
from celery_hardened.contrib.django.schedules.reading import Reading
from celery_hardened.contrib.django.schedules.rows import rows_of
from celery_hardened.errors import ConfigurationError, NotFiredError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.beat import policy_of
from celery_hardened.pipeline.beat_by_hand import ByHand, FiredBeforeError

#: Slots of one backfill.
MOST_SLOTS = 100

#: Milliseconds of a slot, and how often it was sent. Longer numbers, which nobody has been shown, ``int`` may refuse.
_TICKED = re.compile(r"(-?[0-9]{1,15}):([0-9]{1,9})")


class RangeForm(forms.Form):  # type: ignore[misc]
    """From when to when, in the schedule's zone, which is the current one while this is read."""

    begin = moment_field("From", help_text="Slots from this on.")
    end = moment_field("To", help_text="Slots before this.")

    def clean(self) -> Any:
        begin, end = self.cleaned_data.get("begin"), self.cleaned_data.get("end")
        if begin is not None and end is not None and end <= begin:
            self.add_error("end", "This is not later than where the range begins.")
        return self.cleaned_data


class FireForm(RangeForm):
    """And why."""

    why = forms.CharField(
        label="Reason", max_length=500, help_text="For the history and the admin's log.", widget=AdminTextInputWidget
    )


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot of the range, or a change of the clock."""

    line: Line
    utc: str
    task_id: str = ""
    value: str = ""
    """For the form; empty: it is no slot that can be fired."""

    became: str = ""
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What is in a range."""

    past: Past
    rows: Sequence[SlotRow]
    sent: Mapping[float, int]
    """How often the history says that the task of a slot was sent."""

    notes: Sequence[str]


class BackfillPages(Acting):
    """The page, the way to it from the list, and the permission for both."""

    get_object: Any
    _get_obj_does_not_exist_redirect: Any

    def has_backfill_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - as Django's own
        """May the user backfill?"""
        return self._may(request, "backfill_schedule")

    @admin.action(description="Backfill a range of one task…", permissions=["backfill"])  # type: ignore[untyped-decorator]
    def backfill_task(self, request: Any, queryset: Any) -> Any:
        """Go to its page."""
        pks = list(queryset.values_list("pk", flat=True)[:2])
        if len(pks) != 1:
            self.message_user(request, "Select one task: a range is chosen for each.", messages.ERROR)
            return None
        return HttpResponseRedirect(self._backfill_url(pks[0]))

    def _backfill_url(self, pk: Any) -> str:
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_backfill"
        return str(reverse(name, args=[pk]))

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_backfill"
        view = self.admin_site.admin_view(self.backfill_view)
        return [path("<path:object_id>/backfill/", view, name=name), *super().get_urls()]  # type: ignore[misc]

    def backfill_view(self, request: Any, object_id: str) -> Any:
        """GET asks for a range, POST shows its slots, and POST with ``fire`` fires those that are ticked."""
        task = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, task) or not self.has_backfill_permission(request, task):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        if task is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        context: dict[str, Any] = {"title": "Backfill a range", "original": task, "most": MOST_SLOTS}
        try:
            hardening = Hardening.expect(self.celery_app)
            self.celery_app.loader.import_default_modules()
            schedule = _schedule(hardening, task)
        except (ConfigurationError, NotFiredError) as problem:
            return self._page(request, "backfill.html", **context, problem=str(problem))
        zone = zone_read_in(schedule.when, hardening.app.timezone)
        fires = request.method == "POST" and "fire" in request.POST
        kind = FireForm if fires else RangeForm
        with timezone.override(zone):
            form = kind(request.POST if request.method == "POST" else None)
            is_read = form.is_valid()
            context |= {"form": form, "zone": str(zone)}
            if not is_read and fires:
                is_read = not {"begin", "end"} & form.errors.keys()  # the slots stay, and the reason is asked for
            if is_read:
                begin, end = (_instant(form.cleaned_data[name], zone) for name in ("begin", "end"))
                try:
                    found = _found(hardening, schedule, begin, end, zone)
                    if fires and form.is_valid() and not found.past.more:
                        ticked = _ticked(request.POST.getlist("slot"), found)
                        if self._fire(request, hardening, task, schedule, ticked, form.cleaned_data["why"]):
                            return HttpResponseRedirect(self._backfill_url(task.pk))
                        found = _found(hardening, schedule, begin, end, zone)
                except (ConfigurationError, StoreUnavailableError) as problem:
                    return self._page(request, "backfill.html", **context, problem=str(problem))
                context |= {"found": found, "why": form if fires else FireForm()}
            response = self._page(request, "backfill.html", **context)
            # While its zone is the current one: widgets tell moments in that.
            return response.render()

    def _fire(
        self, request: Any, hardening: Hardening, task: Any, schedule: Schedule, ticked: _Ticked, why: str
    ) -> bool:
        """Fire what is ticked, oldest first; was there anything to do? Stops at what is refused, and says how far it
        came: to ask again goes on."""
        if not ticked.slots and not ticked.sent_since:
            self.message_user(request, "Tick the slots that are to be fired. Nothing was done.", messages.ERROR)
            return False
        fired: list[float] = []
        before, trouble = ticked.sent_since, ""
        with closing(ByHand(hardening, by=request.user.get_username(), why=why)) as hand:
            for slot in ticked.slots:
                try:
                    hand.backfill(schedule, slot)
                except FiredBeforeError:
                    before += 1
                    continue
                except (NotFiredError, StoreUnavailableError) as problem:
                    trouble = f"It stopped at the slot of {utc(slot)}: {problem} To go on, ask again."
                    break
                fired.append(slot)
        if fired:
            slots = "1 slot" if len(fired) == 1 else f"{len(fired)} slots"
            told = ", ".join(utc(slot) for slot in fired)
            self.log_change(request, task, f"Backfilled {slots} ({told}): {why}")
            self.message_user(request, f"{task.name}: backfilled {slots}.")
        if before:
            slots = "1 slot was" if before == 1 else f"{before} slots were"
            self.message_user(request, f"{slots} fired already, and not again.", messages.WARNING)
        if trouble:
            self.message_user(request, trouble, messages.ERROR)
        return True


@dataclass(frozen=True, slots=True)
class _Ticked:
    slots: Sequence[float]
    sent_since: int
    """Ticked, and sent by somebody since the page was made."""


def _ticked(values: Sequence[str], found: Found) -> _Ticked:
    sent_then: dict[int, int] = {}
    for value in values:
        if said := _TICKED.fullmatch(value):
            sent_then[int(said[1])] = int(said[2])
    asked = [slot for slot in found.past.slots if round(slot * 1000) in sent_then]
    slots = [slot for slot in asked if found.sent.get(slot, 0) <= sent_then[round(slot * 1000)]]
    return _Ticked(slots, len(asked) - len(slots))


def _schedule(hardening: Hardening, task: Any) -> Schedule:
    row = rows_of(task._state.db, [task.pk])[task.pk]
    schedule = Reading(hardening.app, policy_of(hardening.settings)).schedule_of(row, time.time())
    if schedule is None:
        raise NotFiredError(task.name, "it was to run once, and has run")
    if isinstance(schedule, Problem):
        raise NotFiredError(task.name, schedule.text.rstrip("."))
    return schedule


def _instant(moment: Any, zone: tzinfo) -> float:
    aware = moment.replace(tzinfo=zone) if timezone.is_naive(moment) else moment  # without USE_TZ
    return round(float(aware.timestamp()), 3)


def _found(hardening: Hardening, schedule: Schedule, begin: float, end: float, zone: tzinfo) -> Found:
    store = BeatStore(hardening.redis, Keys(hardening.prefix), history=hardening.settings.beat_history)
    now = time.time()
    stands = course(schedule, store.record(schedule.name), now)
    if not stands.anchored:
        raise ConfigurationError("Its slots are counted from when a beat first sees it, and none has.")
    past = past_slots(schedule, stands, begin, end, now=now, most=MOST_SLOTS)
    slots = past.slots[:MOST_SLOTS]
    told = _told(store.history(schedule.name, hardening.settings.beat_history), schedule.name, slots)
    within = Between(schedule.when.slots(stands.record.anchor), max(begin, schedule.start), min(end, schedule.end))
    upto = min(end, now, slots[-1] + 0.001) if past.more else min(end, now)
    rows = []
    known = set(slots)
    for line in preview(within, begin, max(begin, upto), zone=zone, most=2 * MOST_SLOTS):
        if not line.due:
            rows.append(SlotRow(line, line_of(line.at, fixed.utc).local))
        elif line.at in known:
            said = told.get(line.at)
            sent = said.sent if said else 0
            rows.append(
                SlotRow(
                    line,
                    line_of(line.at, fixed.utc).local,
                    task_id=task_id_of(schedule.name, line.at),
                    value=f"{round(line.at * 1000)}:{sent}",
                    became=said.outcome if said else "",
                    sent=bool(sent),
                )
            )
    return Found(past, rows, {slot: said.sent for slot, said in told.items()}, _notes(past))


def _told(history: Sequence[Mapping[str, Any]], name: str, slots: Sequence[float]) -> Mapping[float, Became]:
    """What became of *slots*. Beats remember the latest lines, and the table what is older: a slot that is not known
    to be sent is ticked."""
    lately = became(history, slots)
    if not slots or len(lately) == len(slots):
        return lately
    long_ago = became(lines_of(name, slots[0], slots[-1]), slots)
    both = {slot: (lately[slot], long_ago[slot]) for slot in lately.keys() & long_ago.keys()}
    return {
        **long_ago,
        **lately,
        **{slot: Became(late.outcome, max(late.sent, old.sent)) for slot, (late, old) in both.items()},
    }


def _notes(past: Past) -> list[str]:
    notes = [f"The slot of {utc(slot)} is left to the beats: it waits to be fired." for slot in past.held]
    if past.undecided is not None:
        notes.append(f"Slots from {utc(past.undecided)} on are left to the beats: none has decided them yet.")
    elif past.to_come is not None:
        notes.append(f"Slots from {utc(past.to_come)} on are still to come.")
    if past.begins is not None:
        notes.append(f"Its slots are counted from {utc(past.begins)}; before that it has none.")
    return notes
