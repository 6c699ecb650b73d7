"""Publishing from async views, through Django's own ASGI handler: sent, on commit, with the id of the request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from celery import Celery
from django.core.exceptions import SynchronousOnlyOperation
from django.core.handlers.asgi import ASGIHandler
from django.db import connection, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import clear_url_caches, path

from celery_hardened.correlation import correlation_id
from celery_hardened.marks import HEADER
from tests.support.django_shop import urls
from tests.support.django_shop.models import Invoice

MIDDLEWARE = ["celery_hardened.contrib.django.middleware.correlation_middleware"]


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Puts a view at ``/``, behind our middleware."""

    def put(function: Any) -> None:
        monkeypatch.setattr(urls, "urlpatterns", [path("", function)])
        clear_url_caches()

    with override_settings(MIDDLEWARE=MIDDLEWARE):
        yield put
    clear_url_caches()


class Answer:
    """What the handler has sent."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


async def get(application: ASGIHandler, name: str) -> Answer:
    """GET ``/`` as a server asks for it; *name* is its request id."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [(b"host", b"shop"), (b"x-request-id", name.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    server = ApplicationCommunicator(application, scope)
    await server.send_input({"type": "http.request", "body": b"", "more_body": False})
    start = await server.receive_output(60)
    body, more = b"", True
    while more:
        part = await server.receive_output(60)
        body, more = body + part.get("body", b""), part.get("more_body", False)
    await server.wait(60)
    return Answer(start["status"], {key.decode(): value.decode() for key, value in start["headers"]}, body)


def ask(*names: str) -> list[Answer]:
    """All of them at the same time."""

    async def all_of_them() -> list[Answer]:
        application = ASGIHandler()
        return await asyncio.gather(*(get(application, name) for name in names))

    return asyncio.run(all_of_them())


@pytest.fixture
def sent(app: Celery, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The correlation id of each message that the broker has, by its task id."""
    sender = app.amqp.send_task_message
    found: dict[str, str] = {}

    def send(producer: Any, name: str, message: Any, **options: Any) -> Any:
        answer = sender(producer, name, message, **options)
        found[message.headers["id"]] = message.headers[HEADER]["correlation_id"]
        return answer

    monkeypatch.setitem(app.amqp.__dict__, "send_task_message", send)
    return found


def test_a_coroutine_publishes(charge: Any, view: Callable[[Any], None], sent: dict[str, str]) -> None:
    """At once, and each of many requests at the same time with its own id, also from a task of asyncio that outlives
    its response and from another thread."""

    async def answer(request: Any) -> HttpResponse:
        await asyncio.sleep(0.01)
        sent = [charge.delay(1), charge.apply_async((2,))]
        sent.append(await sync_to_async(charge.delay, thread_sensitive=False)(3))
        sent.append(await asyncio.create_task(later()))
        assert correlation_id() == request.headers["x-request-id"]
        return HttpResponse(",".join(result.id for result in sent))

    async def later() -> Any:
        await asyncio.sleep(0)
        return charge.delay(4)

    view(answer)
    names = [f"request-{number}" for number in range(5)]
    answers = ask(*names)
    assert [one.status for one in answers] == [200] * 5
    for name, one in zip(names, answers, strict=True):
        assert one.headers["X-Request-ID"] == name
        assert [sent[task_id] for task_id in one.body.decode().split(",")] == [name] * 4
    assert len(sent) == 20


def test_a_transaction_of_its_thread_holds_nobody_else_back(
    charge: Any, view: Callable[[Any], None], sent: dict[str, str]
) -> None:
    """While one request is inside ``atomic()``, in the thread that ``sync_to_async`` uses, the coroutine of its own
    and that of another request send at once; what is published inside is sent at the commit, or never."""
    inside, others = asyncio.Event(), asyncio.Event()

    def bill(loop: asyncio.AbstractEventLoop, fails: bool) -> str:
        with transaction.atomic():
            result = charge.delay(Invoice.objects.create(number="1").pk)
            loop.call_soon_threadsafe(inside.set)
            asyncio.run_coroutine_threadsafe(others.wait(), loop).result(60)
            assert result.id not in sent
            transaction.set_rollback(fails)
        return str(result.id)

    async def answer(request: Any) -> HttpResponse:
        name = request.headers["x-request-id"]
        if name == "other":
            await asyncio.wait_for(inside.wait(), 60)
            now = charge.delay(2)
            assert now.id in sent
            others.set()
            return HttpResponse(now.id)
        loop = asyncio.get_running_loop()
        billed = asyncio.ensure_future(sync_to_async(bill)(loop, name == "fails"))
        await asyncio.wait_for(inside.wait(), 60)
        own = charge.delay(3)
        assert own.id in sent
        return HttpResponse(f"{await billed},{own.id}")

    view(answer)
    for name, committed in (("commits", True), ("fails", False)):
        inside, others = asyncio.Event(), asyncio.Event()
        sent.clear()
        mine, other = ask(name, "other")
        assert (mine.status, other.status) == (200, 200)
        billed, own = mine.body.decode().split(",")
        assert (billed in sent) is committed
        assert sent == {own: name, other.body.decode(): "other", **({billed: name} if committed else {})}


def test_a_synchronous_view_under_asgi(
    charge: Any, view: Callable[[Any], None], sent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``ATOMIC_REQUESTS`` its publishes wait for the commit of the request, each request in its own thread."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    def answer(request: Any) -> HttpResponse:
        name = request.headers["x-request-id"]
        result = charge.delay(Invoice.objects.create(number=name).pk)
        assert result.id not in sent
        if name == "fails":
            raise ZeroDivisionError
        return HttpResponse(result.id)

    view(answer)
    fine, failed = ask("fine", "fails")
    assert (fine.status, failed.status) == (200, 500)
    assert sent == {fine.body.decode(): "fine"}


def test_atomic_in_a_coroutine(charge: Any, view: Callable[[Any], None], sent: dict[str, str]) -> None:
    """Django refuses it before anything was published: a coroutine has no transaction that it could wait for."""

    async def answer(request: Any) -> HttpResponse:
        with pytest.raises(SynchronousOnlyOperation), transaction.atomic():
            charge.delay(1)
        result = charge.apply_async((2,), on_commit=True)
        return HttpResponse(result.id)

    view(answer)
    response = asyncio.run(AsyncClient().get("/"))
    assert list(sent) == [response.content.decode()]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_body_that_is_streamed(charge: Any, view: Callable[[Any], None], sent: dict[str, str], kind: str) -> None:
    """What publishes while the body is sent, when the middleware is through, has the id all the same; between two
    parts nothing else has it."""

    async def parts_async() -> AsyncIterator[str]:
        for number in range(2):
            await asyncio.sleep(0)
            yield charge.delay(number).id + ","

    def parts() -> Iterator[str]:
        for number in range(2):
            yield charge.delay(number).id + ","

    async def answer_async(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(parts_async())

    def answer(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(parts())

    if kind == "async":
        view(answer_async)
        body = ask("streamed")[0].body
    else:
        view(answer)
        response: Any = Client().get("/", headers={"x-request-id": "streamed"})
        seen = []
        for part in response.streaming_content:
            assert correlation_id() is None
            seen.append(part)
        body = b"".join(seen)
    assert sent == dict.fromkeys(body.decode().strip(",").split(","), "streamed")
    assert len(sent) == 2


def test_a_publish_that_waits_for_its_broker_holds_up_the_loop(
    charge: Any, view: Callable[[Any], None], sent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``delay`` blocks, as in any code; in a thread of its own (``thread_sensitive=False``) it does not."""
    sender = charge.app.amqp.send_task_message
    turned, patience = threading.Event(), [0.5, 60.0]

    def slow(*args: Any, **options: Any) -> Any:
        turned.wait(patience.pop(0))  # the broker answers late: once the loop has turned, if it does
        return sender(*args, **options)

    monkeypatch.setitem(charge.app.amqp.__dict__, "send_task_message", slow)

    async def turns_during(publish: Callable[[], Awaitable[Any]]) -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                if turns == 3:
                    turned.set()
                await asyncio.sleep(0.01)

        turning = asyncio.create_task(turn())
        await publish()
        turning.cancel()
        return turns

    async def blocking() -> None:
        charge.delay(1)

    async def answer(request: Any) -> HttpResponse:
        held = await turns_during(blocking)
        free = await turns_during(lambda: sync_to_async(charge.delay, thread_sensitive=False)(2))
        return HttpResponse(f"{held},{free}")

    view(answer)
    held, free = map(int, ask("slow")[0].body.split(b","))
    assert held <= 1
    assert free >= 3
    assert len(sent) == 2
