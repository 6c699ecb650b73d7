"""Publish on commit in requests and commands: ``ATOMIC_REQUESTS``, async views, management commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from celery import Celery
from django.core.management import BaseCommand, call_command
from django.db import connection, transaction
from django.db.models.signals import post_save
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import clear_url_caches, path

from celery_hardened.errors import PublishFailedError
from tests.support import django_project
from tests.support.django_shop import urls
from tests.support.django_shop.models import Invoice
from tests.support.queued import queued_ids


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Puts a view at ``/``."""

    def put(function: Any) -> None:
        monkeypatch.setattr(urls, "urlpatterns", [path("", function)])
        clear_url_caches()

    yield put
    clear_url_caches()


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)


def test_atomic_requests_send_after_the_view(
    app: Celery, charge: Any, view: Callable[[Any], None], atomic_requests: None
) -> None:
    """H129: a publish in ``post_save`` inside an ``ATOMIC_REQUESTS`` view is sent when the request has committed."""
    waiting: list[Any] = []

    def on_save(instance: Any, **_: Any) -> None:
        waiting.append(charge.delay(instance.pk))

    def answer(request: Any) -> HttpResponse:
        Invoice.objects.create(number="1")
        assert queued_ids(app) == []
        return HttpResponse(waiting[0].id)

    view(answer)
    post_save.connect(on_save, sender=Invoice)
    try:
        response = Client().get("/")
    finally:
        post_save.disconnect(on_save, sender=Invoice)
    assert queued_ids(app) == [response.content.decode()]


def test_a_view_that_fails_publishes_nothing(
    app: Celery, charge: Any, view: Callable[[Any], None], atomic_requests: None
) -> None:
    """The request rolls back, and no worker looks for a row that never was."""

    def answer(request: Any) -> HttpResponse:
        charge.delay(Invoice.objects.create(number="1").pk)
        raise ZeroDivisionError

    view(answer)
    response = Client(raise_request_exception=False).get("/")
    assert response.status_code == 500
    assert Invoice.objects.count() == 0
    assert queued_ids(app) == []


def test_a_view_outside_of_atomic_requests(
    app: Celery, charge: Any, view: Callable[[Any], None], atomic_requests: None
) -> None:
    """``@transaction.non_atomic_requests`` is sent at once."""

    @transaction.non_atomic_requests
    def answer(request: Any) -> HttpResponse:
        result = charge.delay(1)
        assert queued_ids(app) == [result.id]
        return HttpResponse()

    view(answer)
    assert Client().get("/").status_code == 200


def test_a_failed_publish_is_the_requests_error(
    app: Celery, charge: Any, view: Callable[[Any], None], atomic_requests: None, broken: list[str]
) -> None:
    """The framework sees it: status 500, reported like any other error; the rows are there."""

    def answer(request: Any) -> HttpResponse:
        charge.delay(Invoice.objects.create(number="1").pk)
        return HttpResponse()

    view(answer)
    assert Client(raise_request_exception=False).get("/").status_code == 500
    with pytest.raises(PublishFailedError):
        Client().get("/")
    assert Invoice.objects.count() == 2


def test_async_views_use_transactions_in_threads(app: Celery, charge: Any, view: Callable[[Any], None]) -> None:
    """In an async view the transaction lives in the thread that ``sync_to_async`` uses; what is published
    in the coroutine itself is in no transaction, and sent at once."""

    def bill() -> tuple[str, list[str]]:
        with transaction.atomic():
            result = charge.delay(Invoice.objects.create(number="1").pk)
            return result.id, queued_ids(app)

    async def answer(request: Any) -> HttpResponse:
        task_id, before = await sync_to_async(bill)()
        assert before == []
        assert queued_ids(app) == [task_id]
        now = charge.delay(2)
        assert queued_ids(app) == [now.id]
        await sync_to_async(django_project.close_all)()  # that thread has connections of its own
        return HttpResponse(task_id)

    view(answer)
    response = asyncio.run(AsyncClient().get("/"))
    assert response.status_code == 200


def test_a_management_command(app: Celery, charge: Any) -> None:
    """H130: there is no request whose end could be waited for; the commit of the command sends."""

    class Command(BaseCommand):  # type: ignore[misc]
        def handle(self, *args: Any, **options: Any) -> None:
            with transaction.atomic(using="other"):
                charge.delay(1)
                assert queued_ids(app) == []
            assert len(queued_ids(app)) == 1

    call_command(Command())
