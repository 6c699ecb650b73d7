"""The overview in Django's admin: its two addresses, and who may see it. It changes nothing, and only reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any

from celery import current_app
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, path, reverse

from celery_hardened.cli.text import without_passwords
from celery_hardened.contrib.django.answers import encoded
from celery_hardened.contrib.django.models import Overview
from celery_hardened.contrib.django.overview.problems import Limits, Place
from celery_hardened.contrib.django.overview.shown import Address, shown, with_filters
from celery_hardened.contrib.django.overview.watch import watch_of
from celery_hardened.errors import ConfigurationError
from celery_hardened.hardening import Hardening
from celery_hardened.metrics.rules.terms import Terms

_NAME = "celery_hardened_overview"

#: Permission and page of each place.
_PLACES: Mapping[Place, tuple[str, str]] = {
    "letters": ("celery_hardened.view_deadletter", "celery_hardened_deadletter_changelist"),
    "schedules": ("django_celery_beat.view_periodictask", "django_celery_beat_periodictask_changelist"),
}

#: Page of a place when it is to be filtered, if that is another one.
_FILTERED: Mapping[Place, str] = {"letters": "celery_hardened_deadletter_list"}


@admin.register(Overview)
class OverviewAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """One page. Nothing here asks the model's table.

    ``celery_app`` is the hardened app, by default Celery's current one; ``limits`` are those of the problems, by
    default the alerts' own.
    """

    celery_app: Any = current_app
    limits: Limits | None = None

    def get_urls(self) -> list[Any]:
        """In place of all of Django's own."""
        return [
            path("", self._page(self.overview_view), name=f"{_NAME}_changelist"),
            path("part/", self._page(self.part_view), name=f"{_NAME}_part"),
        ]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """The whole page."""
        return self._answer(request, "page")

    def part_view(self, request: HttpRequest) -> HttpResponse:
        """What of it refreshes."""
        return self._answer(request, "part")

    def _page(self, view: Callable[..., HttpResponse]) -> Callable[..., Any]:
        def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            if request.method not in ("GET", "HEAD"):
                return HttpResponseNotAllowed(["GET", "HEAD"])
            return view(request, *args, **kwargs)

        return update_wrapper(self.admin_site.admin_view(page), page)

    def _answer(self, request: HttpRequest, page: str) -> HttpResponse:
        context = {**self.admin_site.each_context(request), "opts": self.opts, "title": "Overview"}
        status = 200
        try:
            hardening = Hardening.expect(self.celery_app)
            limits = self.limits or Limits(terms=Terms(app=hardening.app.main))
            seen = watch_of(hardening).look()
            context |= shown(seen.facts, seen.at, limits, self._address(request))
        except ConfigurationError as problem:
            context["trouble"], status = without_passwords(str(problem)), 503
        request.current_app = self.admin_site.name
        text = render_to_string(f"admin/celery_hardened/overview/{page}.html", context, request)
        return HttpResponse(encoded(text), status=status)

    def _address(self, request: HttpRequest) -> Address:
        """Links for who asks: to pages that he may see, and that this site has."""

        def address(place: Place, filters: Mapping[str, str]) -> str | None:
            permission, page = _PLACES[place]
            if not request.user.has_perm(permission):
                return None
            try:
                name = _FILTERED.get(place, page) if filters else page
                return with_filters(reverse(f"admin:{name}", current_app=self.admin_site.name), filters)
            except NoReverseMatch:
                return None

        return address

    # --- who may what -------------------------------------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, *_: Any, **__: Any) -> bool:
        return bool(request.user.has_perm("celery_hardened.view_overview"))

    def has_add_permission(self, *_: Any, **__: Any) -> bool:
        return False

    def has_change_permission(self, *_: Any, **__: Any) -> bool:
        return False

    def has_delete_permission(self, *_: Any, **__: Any) -> bool:
        return False
