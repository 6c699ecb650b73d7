"""Pages of bulk actions: the list, how far one has come, and the buttons that stop it or make it go on."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, Min
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect

from celery_hardened.cli import text
from celery_hardened.cli.selection import described
from celery_hardened.contrib.django.dead_letters import bulk, bulk_log
from celery_hardened.contrib.django.dead_letters.browse import BrowsePages
from celery_hardened.contrib.django.dead_letters.forms import DiscardForm
from celery_hardened.contrib.django.models import BulkAction, BulkActionLetter
from celery_hardened.dead_letter.contract import Query

logger = logging.getLogger("celery_hardened.dead_letter")

#: Bulk actions on the list, newest first.
_LISTED = 100

#: Reasons for which letters were not sent, on the page of one.
_REASONS = 30

#: Seconds without a sign of life after which the page says what to do.
_QUIET = 15.0


class BulkPages(BrowsePages):
    """A part of ``DeadLetterAdmin``."""

    def bulk_list_view(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        found = [_line(one) for one in bulk.actions().order_by("-pk")[:_LISTED]]
        return self.answer(request, "bulk_list", {"title": "Bulk actions", "found": found, "most": _LISTED})

    def bulk_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Three queries, however many letters there are."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        action = _found(pk)
        query = bulk.loaded(action.query)
        quiet = _age(action, action.progressed_at or action.asked_at)
        expected = _QUIET + (1.0 / action.rate if action.rate else 0.0)
        context = {
            **_line(action),
            "title": f"{action.kind} {action.pk}",
            "stands": not action.ended and not action.held and quiet > expected,
            "quiet": f"{quiet:.0f} s",
            "may_act": self.may(request, action.what),
            "described": described(query),
            "reasons": _reasons(action),
            "queue": self.celery_app.conf.task_default_queue,
            "command": command_of(action, query),
            "to_do": max(0, action.total - action.dealt_with),
        }
        return self.answer(request, "bulk_action", context)

    def bulk_stop_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self._press(request, pk, self._stop)

    def bulk_go_on_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self._press(request, pk, self._go_on)

    def _press(
        self, request: HttpRequest, pk: int, do: Callable[[HttpRequest, BulkAction], None]
    ) -> HttpResponse:  # fmt: skip
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        action = _found(pk)
        if not self.may(request, action.what):
            raise PermissionDenied
        if action.ended:
            messages.info(request, "It had ended before.")
        else:
            do(request, action)
        return HttpResponseRedirect(self.address("bulk_action", action.pk))

    def _stop(self, request: HttpRequest, action: BulkAction) -> None:
        who = request.user.get_username()
        rows = BulkAction.objects.using(bulk.alias()).filter(pk=action.pk).exclude(state__in=bulk.ENDED)
        with transaction.atomic(using=bulk.alias()):
            if not rows.update(stop_by=who):  # a worker has ended it since it was looked at
                messages.info(request, "It had ended before.")
                return
            action.refresh_from_db()  # the log tells how far it came
            # A worker looks before each step. Where none holds it, this is the only one to end it.
            idle = rows.exclude(bulk.WORKED_ON)
            ended = idle.update(state="stopped", note=f"{who} stopped it.", ended_at=Now(), held_until=None)
            bulk_log.note(action, request.user.pk, f"{action.kind} stopped. {bulk_log.summary(action)}")
        said = "It is stopped." if ended else "It stops after the letters that are under way."
        messages.info(request, f"{said} What was sent or discarded stays so; the other letters are as they were.")

    def _go_on(self, request: HttpRequest, action: BulkAction) -> None:
        bulk_log.note(action, request.user.pk, f"{action.kind} asked to go on. {bulk_log.summary(action)}")
        transaction.on_commit(partial(self._ask, action.pk), using=bulk.alias())
        messages.info(request, "A worker was asked to go on with it.")

    # --- a new one ------------------------------------------------------------------------------------------------

    def begin_bulk(self, request: HttpRequest, what: str, query: Query, total: int, form: DiscardForm) -> HttpResponse:
        """Write a bulk action down, ask the workers for it, and show its page."""
        given = form.cleaned_data
        key = request.POST.get("key", "")
        defaults = {
            "what": what,
            "by": request.user.get_username(),
            "user_id": str(request.user.pk),
            "why": given["why"],
            "query": bulk.dumped(query),
            "total": total,
            "asked_at": Now(),
            "dry_run": bool(given.get("dry_run")),
            "rate": given.get("rate"),
            "canary": given.get("canary"),
            "canary_wait": given.get("canary_wait") or 60.0,
            "canary_max_failed": given.get("canary_max_failed") or 0.0,
        }
        using = bulk.alias()
        with transaction.atomic(using=using):
            action, new = BulkAction.objects.using(using).get_or_create(
                key=key if key.isalnum() and len(key) == len(uuid.uuid4().hex) else uuid.uuid4().hex, defaults=defaults
            )
            if new:
                bulk_log.note_asked(action)
                # Not earlier: a worker that is quick would look for a row that is not there yet.
                transaction.on_commit(partial(self._ask, action.pk), using=using)
        return HttpResponseRedirect(self.address("bulk_action", action.pk))

    def _ask(self, pk: int) -> None:
        try:
            bulk.ask(self.celery_app, pk)
        except Exception as problem:
            # Each broker's client raises its own. The page says what to do.
            logger.exception("no worker could be asked to carry bulk action %s out", pk)
            said = f"The broker did not take the message to the workers ({type(problem).__name__}; the log tells more)."
            BulkAction.objects.using(bulk.alias()).filter(pk=pk).update(note=said)


def command_of(action: BulkAction, query: Query) -> str:
    """What does the same as *action* on the command line."""
    options = {"rate": action.rate, "canary": action.canary}
    if action.canary:
        options |= {"canary_wait": action.canary_wait, "canary_max_failed": action.canary_max_failed}
    made = bulk.command(action.what, query, **options)
    return f"{made} --dry-run" if action.dry_run else made


def _found(pk: int) -> Any:
    found = bulk.actions().filter(pk=pk).first()
    if found is None:
        raise Http404("There is no such bulk action.")
    return found


def _age(action: Any, moment: datetime) -> float:
    return max(0.0, float((action.now - moment).total_seconds()))


def _line(action: Any) -> dict[str, Any]:
    moments = {name: _utc(getattr(action, name)) for name in ("asked_at", "started_at", "progressed_at", "ended_at")}
    return {
        "action": action,
        "said": bulk_log.summary(action),
        "since": f"{_age(action, action.asked_at):.0f} s",
        **moments,
    }


def _utc(moment: datetime | None) -> str:
    return text.date(None if moment is None else moment.timestamp())


def _reasons(action: BulkAction) -> list[dict[str, Any]]:
    rows = BulkActionLetter.objects.using(bulk.alias()).filter(action_id=action.pk, outcome__in=_NOT_SENT)
    grouped = rows.values("outcome", "why").annotate(number=Count("pk"), example=Min("letter")).order_by("-number")
    return [{**one, "outcome": _NOT_SENT[one["outcome"]]} for one in grouped[:_REASONS]]


_NOT_SENT = {"refused": "refused", "failed": "failed", "left": "left alone", "held": "held by another redrive"}
