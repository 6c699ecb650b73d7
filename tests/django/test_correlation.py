"""The middleware for Django: synchronous and not, and what is published on the commit of its request."""

from __future__ import annotations

import asyncio
from typing import Any

from celery import Celery
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from celery_hardened.contrib.django.middleware import correlation_middleware
from celery_hardened.correlation import correlate, correlation_id
from celery_hardened.marks import HEADER
from tests.support.in_process import InProcessWorker


def test_a_request_gives_its_id() -> None:
    seen: list[str | None] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(correlation_id())
        return HttpResponse()

    response: Any = correlation_middleware(view)(RequestFactory().get("/", HTTP_X_REQUEST_ID="r1"))
    assert (seen, response["X-Request-ID"]) == (["r1"], "r1")
    assert correlation_id() is None


def test_an_asynchronous_one_too() -> None:
    seen: list[str | None] = []

    async def view(request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(0)
        seen.append(correlation_id())
        return HttpResponse()

    response: Any = asyncio.run(correlation_middleware(view)(RequestFactory().get("/", HTTP_X_REQUEST_ID="r1")))
    assert (seen, response["X-Request-ID"]) == (["r1"], "r1")


def test_what_waits_for_the_commit_has_the_id_of_its_call(app: Celery) -> None:
    """Though it is sent when the block of the id is over."""
    with InProcessWorker(app) as worker:
        with transaction.atomic(), correlate("web-1"):
            app.tasks["shop.charge"].delay(1)
        worker.run()
    assert [message.headers[HEADER]["correlation_id"] for message in worker.seen] == ["web-1"]
