"""Pages that change letters: redrive and discard. Each is asked twice, by POST, and the second time says why.

What is done is what was shown: the ids of the letters stand in the page that asks, or, where there are too many, the
moment of the newest of them. Letters that came meanwhile are left alone.

A few letters are dealt with by the page itself; more of them, or a redrive that takes its time, by a worker
(``bulk.py``).
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.utils import unquote
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect

from celery_hardened.cli import text
from celery_hardened.contrib.django.dead_letters import bulk, shown
from celery_hardened.contrib.django.dead_letters.bulk_pages import BulkPages
from celery_hardened.contrib.django.dead_letters.forms import DiscardForm, FilterForm, RedriveForm
from celery_hardened.contrib.django.models import DeadLetter
from celery_hardened.dead_letter.contract import Query
from celery_hardened.errors import DeadLetterError, StoreUnavailableError

logger = logging.getLogger("celery_hardened.dead_letter")

#: Letters that one request changes at most; more are a worker's.
MOST = 500

#: Letters named in the page that asks.
_NAMED = 20

_AT_A_TIME = 100


@dataclass(frozen=True, slots=True)
class Chosen:
    """The letters that a page is about."""

    query: Query
    """By ids if they are few, else bounded by the newest of them."""

    matching: int


class ActPages(BulkPages):
    """A part of ``DeadLetterAdmin``."""

    def redrive_view(self, request: HttpRequest) -> HttpResponse:
        return self._act(request, "redrive", RedriveForm, self._redrive)

    def discard_view(self, request: HttpRequest) -> HttpResponse:
        return self._act(request, "discard", DiscardForm, self._discard)

    def _act(
        self,
        request: HttpRequest,
        what: str,
        form_class: type[DiscardForm],
        do: Callable[[HttpRequest, Sequence[str], DiscardForm], None],
    ) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.may(request, what):
            raise PermissionDenied
        try:
            chosen = self._chosen(request, what)
        except BadSignature:
            messages.warning(request, "That page did not come from this site; nothing was changed.")
            return HttpResponseRedirect(self.address("list"))
        if not chosen.matching:  # Query(ids=()) is not "none" but "whatever their id"
            messages.warning(request, "No letter was chosen; nothing was changed.")
            return HttpResponseRedirect(self.address("list"))
        # "which" comes from the list: what was chosen there was not shown and asked about yet.
        confirmed = "confirmed" in request.POST and "which" not in request.POST
        form = form_class(request.POST if confirmed else None)
        if confirmed and form.is_valid():
            if chosen.matching > MOST or form.in_background():
                return self.begin_bulk(request, what, chosen.query, chosen.matching, form)
            do(request, chosen.query.ids, form)
            return HttpResponseRedirect(self.address("changelist"))
        return self._ask_first(request, what, chosen, form)

    def _chosen(self, request: HttpRequest, what: str) -> Chosen:
        """Raises ``BadSignature``."""
        if "query" in request.POST:
            query = bulk.loaded(signing.loads(request.POST["query"], salt=_salt(request, what)))
            return Chosen(query, self.store.count(query))
        if request.POST.get("which") == "all":
            form = FilterForm(request.POST)
            if not form.is_valid():
                return Chosen(Query(), 0)
            query = bulk.until_newest(self.store, form.query())
            matching = self.store.count(query)
            if matching > MOST:
                return Chosen(query, matching)
            ids = list(islice(self.store.ids(query), MOST))
        else:
            ids = [unquote(quoted) for quoted in dict.fromkeys(request.POST.getlist("id"))]
        return Chosen(Query(ids=tuple(ids)), len(ids))

    def _ask_first(self, request: HttpRequest, what: str, chosen: Chosen, form: DiscardForm) -> HttpResponse:
        query, many = chosen.query, chosen.matching > MOST
        context: dict[str, Any] = {"title": f"{what.capitalize()} {text.amount(chosen.matching)}?", "what": what}
        context |= {"form": form, "ids": query.ids, "many": many, "matching": chosen.matching}
        context |= {"letters": shown.rows(self.store.find(query, limit=_NAMED).letters), "key": uuid.uuid4().hex}
        context["unnamed"] = max(0, chosen.matching - _NAMED)
        if not query.ids:
            context["query"] = signing.dumps(bulk.dumped(query), salt=_salt(request, what))
        if what == "redrive":
            # Of many, the oldest: they are the first to be sent.
            some = tuple(islice(self.store.ids(query), _AT_A_TIME)) if many else query.ids
            context |= self._dry_run(request, some) | {"tried": len(some)}
        else:
            context["ready"] = self.store.count(query)
        return self.answer(request, "confirm", context)

    def _dry_run(self, request: HttpRequest, ids: tuple[str, ...]) -> dict[str, Any]:
        by = request.user.get_username()
        try:
            report = self.hardening.redrive(Query(ids=ids), by=by, why="", dry_run=True)
        except StoreUnavailableError:
            raise
        except Exception as problem:
            logger.exception("a dry run of a redrive failed")
            return {"trouble": f"The dry run failed ({type(problem).__name__}); the log tells more."}
        told = {"ready": report.sent, "skipped": report.skipped, "stopped": report.stopped}
        return {**told, "refused": _by_reason(report.refused)}

    # --- what is done -------------------------------------------------------------------------------------------

    def _redrive(self, request: HttpRequest, ids: Sequence[str], form: DiscardForm) -> None:
        why = form.cleaned_data["why"]
        by = request.user.get_username()
        free: list[str] = []

        def do() -> str:
            # A redrive waits for letters that another one holds, for longer than a page can.
            for start in range(0, len(ids), _AT_A_TIME):
                some = tuple(ids[start : start + _AT_A_TIME])
                found = self.store.find(Query(ids=some), limit=len(some)).letters
                free.extend(stored.letter.id for stored in found if not stored.leased)
            busy = len(ids) - len(free)
            aside = (
                f" {text.amount(busy)} left alone: closed, gone, or being redriven by somebody else." if busy else ""
            )
            if not free:
                return f"Nothing was sent.{aside}"
            report = self.hardening.redrive(Query(ids=tuple(free)), by=by, why=why)
            problems = Counter([*report.refused.values(), *report.failed.values()])
            said = "".join(f" {text.amount(number)} not sent: {reason}" for reason, number in problems.items())
            return f"{report.sent} of {text.amount(len(ids))} sent.{aside}{said} {report.stopped or ''}".strip()

        self._done(request, "Redrive", ids, why, do)

    def _discard(self, request: HttpRequest, ids: Sequence[str], form: DiscardForm) -> None:
        why = form.cleaned_data["why"]
        by = request.user.get_username()

        def do() -> str:
            closed, problems = 0, []
            for letter_id in ids:
                try:
                    closed += self.hardening.discard([letter_id], by=by, why=why)
                except DeadLetterError as problem:
                    problems.append(str(problem))
            return " ".join([f"{closed} of {text.amount(len(ids))} discarded.", *problems[:3]])

        self._done(request, "Discard", ids, why, do)

    def _done(
        self, request: HttpRequest, what: str, ids: Sequence[str], why: str, do: Callable[[], str]
    ) -> None:  # fmt: skip
        """Do it, and say what came of it in the page and in the admin's log, also when it broke off."""
        level = messages.INFO
        try:
            said = do()
        except Exception as problem:
            # The store, the broker or the result backend, and each client raises its own.
            logger.exception("%s of dead letters by %s broke off", what, request.user.get_username())
            level = messages.ERROR
            said = (
                f"It broke off ({type(problem).__name__}; the log tells more). What was done is done, and the page of "
                f"each letter says so; to ask again goes on with the rest."
            )
        said = text.without_passwords(said)[:1000]
        messages.add_message(request, level, f"{what}: {said}")
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type_id=get_content_type_for_model(DeadLetter).pk,
            object_id=ids[0] if len(ids) == 1 else None,
            object_repr=(ids[0] if len(ids) == 1 else text.amount(len(ids)))[:200],
            action_flag=CHANGE,
            change_message=f"{what}: {said} Reason: {why}",
        )


def _salt(request: HttpRequest, what: str) -> str:
    """What was shown to one user before a discard is good for neither another one nor a redrive."""
    return f"celery_hardened.dead_letters.{what}.{request.user.pk}"


def _by_reason(refused: dict[str, str]) -> list[tuple[int, str]]:
    return [(number, why) for why, number in Counter(refused.values()).most_common()]
