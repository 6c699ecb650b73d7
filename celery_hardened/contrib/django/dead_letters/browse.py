"""Pages that only read: the overview of causes, the list, a letter, the export."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, StreamingHttpResponse
from django.template.loader import render_to_string
from django.urls import reverse

from celery_hardened.contrib.django.answers import encoded
from celery_hardened.contrib.django.dead_letters import shown
from celery_hardened.contrib.django.dead_letters.export import letters, lines
from celery_hardened.contrib.django.dead_letters.forms import FilterForm
from celery_hardened.dead_letter.contract import OPEN, DeadLetterStore, Query, State, StoredLetter
from celery_hardened.errors import DeadLetterNotFoundError
from celery_hardened.hardening import Hardening

#: Letters on a page of the list.
PER_PAGE = 50

_CLOSED: tuple[State, ...] = ("redriven", "resolved", "discarded")


class BrowsePages:
    """A part of ``DeadLetterAdmin``."""

    admin_site: Any
    opts: Any
    celery_app: Any

    @property
    def hardening(self) -> Hardening:
        """Raises ``ConfigurationError`` if the app was never hardened."""
        return Hardening.expect(self.celery_app)

    @property
    def store(self) -> DeadLetterStore:
        return self.hardening.dead_letters

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        return self.answer(request, "overview", {"title": "Dead letters", **shown.overview(self.store)})

    def list_view(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        form = FilterForm(request.GET)
        context: dict[str, Any] = {"title": "List of dead letters", "form": form, "address": form.address()}
        if form.is_valid():
            query = form.query()
            try:
                letters, cursor = self._found(query, request.GET.get("cursor") or None)
            except (ValueError, OverflowError):  # no cursor that this store has given
                messages.warning(request, "There is no such page; this is the first one.")
                return HttpResponseRedirect(f"{self.address('list')}?{form.address()}")
            context |= {
                "letters": shown.rows(letters),
                # By name, also closed ones are shown, which no single query counts.
                "count": len(letters) if query.ids else self.store.count(query),
                "cursor": cursor,
                "later": bool(request.GET.get("cursor")),
                "given": form.given(),
                "can_act": query.state in (None, *OPEN)
                and (self.may(request, "redrive") or self.may(request, "discard")),
            }
        return self.answer(request, "list", context)

    def _found(self, query: Query, cursor: str | None) -> tuple[list[StoredLetter], str | None]:
        """One call; who looks for a letter by name, whatever became of it, takes four and gets one page."""
        if query.ids and query.state is None:
            return list(self._named(query)), None
        page = self.store.find(query, limit=PER_PAGE, cursor=cursor)
        return list(page.letters), page.cursor

    def _named(self, query: Query) -> Iterator[StoredLetter]:
        for state in (None, *_CLOSED):
            yield from self.store.find(replace(query, state=state), limit=PER_PAGE).letters

    def letter_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        try:
            stored = self.store.get(unquote(object_id))
        except DeadLetterNotFoundError:
            messages.warning(request, "There is no such letter. Retention may have dropped it.")
            return HttpResponseRedirect(self.address("changelist"))
        context = shown.details(stored, see_arguments=self.may(request, "see_arguments"))
        context["may_edit"] = all(self.may(request, one) for one in ("redrive", "see_arguments", "edit_arguments"))
        context["siblings"], context["more_siblings"] = shown.siblings(self.store, stored.letter)
        return self.answer(request, "letter", context)

    # --- export -------------------------------------------------------------------------------------------------

    def export_view(self, request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
        """All letters that match, as CSV or as lines of JSON; with arguments if they may be seen."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        form = FilterForm(request.GET)
        if not form.is_valid():
            return HttpResponseRedirect(f"{self.address('list')}?{form.address()}")
        query, as_csv = form.query(), request.GET.get("format") == "csv"
        found = self._named(query) if query.ids and query.state is None else letters(self.store, query)
        # The first is read before anything is sent: a store that is away is told as on every page.
        first = list(islice(found, 1))
        kind, ending = ("text/csv", "csv") if as_csv else ("application/x-ndjson", "jsonl")
        told = lines(chain(first, found), arguments=self.may(request, "see_arguments"), as_csv=as_csv)
        response = StreamingHttpResponse(told, content_type=f"{kind}; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="dead-letters.{ending}"'
        response["X-Content-Type-Options"] = "nosniff"
        return response

    # --- what the pages share -----------------------------------------------------------------------------------

    def may(self, request: HttpRequest, what: str) -> bool:
        """May this user ``redrive``, ``discard``, ``see_arguments`` or ``edit_arguments``?"""
        name = what if what.endswith("_arguments") else f"{what}_deadletter"
        return bool(request.user.has_perm(f"celery_hardened.{name}"))

    def address(self, page: str, *args: object) -> str:
        name = f"admin:celery_hardened_deadletter_{page}"
        found: str = reverse(name, args=args, current_app=self.admin_site.name)
        return found

    def answer(self, request: HttpRequest, page: str, context: dict[str, Any]) -> HttpResponse:
        known = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "may_redrive": self.may(request, "redrive"),
            "may_discard": self.may(request, "discard"),
            **context,
        }
        request.current_app = self.admin_site.name
        text = render_to_string(f"admin/celery_hardened/deadletter/{page}.html", known, request)
        return HttpResponse(encoded(text))
