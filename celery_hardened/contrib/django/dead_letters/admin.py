"""The section of dead letters in Django's admin: its addresses, who may see it, and what it says without a store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from celery import current_app
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path

from celery_hardened.cli.text import without_passwords
from celery_hardened.contrib.django.dead_letters.edit import EditPages
from celery_hardened.contrib.django.models import DeadLetter
from celery_hardened.errors import ConfigurationError, EnvelopeError, StoreUnavailableError

logger = logging.getLogger("celery_hardened.dead_letter")


@admin.register(DeadLetter)
class DeadLetterAdmin(EditPages, admin.ModelAdmin):  # type: ignore[misc]
    """Letters of whichever store the app has; nothing here asks the model's table.

    ``celery_app`` is the hardened app; by default Celery's current one.
    """

    celery_app: Any = current_app

    def get_urls(self) -> list[Any]:
        """In place of all of Django's own: none of its forms can change a letter."""
        name = "celery_hardened_deadletter"
        return [
            path("", self._page(self.overview_view), name=f"{name}_changelist"),
            path("list/", self._page(self.list_view), name=f"{name}_list"),
            path("export/", self._page(self.export_view), name=f"{name}_export"),
            path("redrive/", self._page(self.redrive_view), name=f"{name}_redrive"),
            path("discard/", self._page(self.discard_view), name=f"{name}_discard"),
            path("bulk/", self._page(self.bulk_list_view), name=f"{name}_bulk"),
            path("bulk/<int:pk>/", self._page(self.bulk_view), name=f"{name}_bulk_action"),
            path("bulk/<int:pk>/stop/", self._page(self.bulk_stop_view), name=f"{name}_bulk_stop"),
            path("bulk/<int:pk>/go-on/", self._page(self.bulk_go_on_view), name=f"{name}_bulk_go_on"),
            path("<path:object_id>/edit/", self._page(self.edit_view), name=f"{name}_edit"),
            path("<path:object_id>/change/", self._page(self.letter_view), name=f"{name}_change"),
        ]

    def _page(self, view: Callable[..., HttpResponse]) -> Callable[..., Any]:
        def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            try:
                return view(request, *args, **kwargs)
            except (StoreUnavailableError, ConfigurationError, EnvelopeError) as problem:
                logger.warning("a page of dead letters was not shown: %s", problem, extra={"reason": "store"})
                return self._without_store(request, problem)

        # The store writes in transactions of its own, and on SQLite it would wait for the one around the request. What
        # has to be written together is in a block of its own; the log is written after what it tells of.
        for alias in connections:
            page = transaction.non_atomic_requests(alias)(page)
        return update_wrapper(self.admin_site.admin_view(page), page)

    def _without_store(self, request: HttpRequest, problem: Exception) -> HttpResponse:
        context = {**self.admin_site.each_context(request), "opts": self.opts, "title": "Dead letters cannot be read"}
        context["problem"] = without_passwords(str(problem))
        page = "admin/celery_hardened/deadletter/unavailable.html"
        return TemplateResponse(request, page, context, status=503).render()

    # --- who may what -------------------------------------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, *_: Any, **__: Any) -> bool:
        return bool(request.user.has_perm("celery_hardened.view_deadletter"))

    def has_add_permission(self, *_: Any, **__: Any) -> bool:
        return False

    def has_change_permission(self, *_: Any, **__: Any) -> bool:
        return False

    def has_delete_permission(self, *_: Any, **__: Any) -> bool:
        return False
