"""The correlation id: where it comes from, what it may be, and who has it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened import HardenedTask
from celery_hardened.correlation import ASGIMiddleware, CorrelationFilter, WSGIMiddleware, correlate, correlation_id
from celery_hardened.correlation.current import is_safe
from celery_hardened.correlation.web import id_of
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.publish import FireMarks, firing
from tests.support.in_process import InProcessWorker

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def published(app: Celery, **options: Any) -> dict[str, Any]:
    """Our header of a task that is published here."""

    @app.task(shared=False, name="charge")
    def charge() -> None: ...

    with InProcessWorker(app) as worker:
        charge.apply_async(**options)
        worker.run()
    header: dict[str, Any] = worker.seen[0].headers[HEADER]
    return header


# --- what it may be ---------------------------------------------------------------------------------------------


@given(st.text())
def test_a_safe_id_can_be_printed_as_it_is(text: str) -> None:
    if is_safe(text):
        assert text.isascii()
        assert text.isprintable()
        assert not set(text) & set(" \"'\\\n\r\t")


@pytest.mark.parametrize("name", ["", "a\n", "a b", "ü", "x" * 129, "a\x1b[31m"])
def test_an_unsafe_id_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="correlation id"), correlate(name):
        pass


def test_it_ends_with_its_block() -> None:
    assert correlation_id() is None
    with correlate("outer"), correlate() as inner:
        assert correlation_id() == inner != "outer"
    assert correlation_id() is None


# --- what is published ------------------------------------------------------------------------------------------


def test_where_there_is_none_nothing_is_sent(app: Celery) -> None:
    """The root id stands for it: the message is no larger."""
    assert "correlation_id" not in published(app)


def test_what_is_published_inside_has_it(app: Celery) -> None:
    with correlate("web-1"):
        assert published(app)["correlation_id"] == "web-1"


def test_what_the_caller_gives_goes_before(app: Celery) -> None:
    with correlate("web-1"):
        given = {HEADER: Marks(correlation_id="mine").header()}
        assert published(app, headers=given)["correlation_id"] == "mine"


def test_a_fire_of_a_schedule_begins_anew(app: Celery) -> None:
    """Fired by hand in a web request too: the next fire would not have that id either."""
    token = firing.set(("t1", FireMarks(slot=60.0, schedule="nightly")))
    try:
        with correlate("web-1"):
            header = published(app, task_id="t1")
    finally:
        firing.reset(token)
    assert header["schedule"] == "nightly"
    assert "correlation_id" not in header


def test_a_retry_keeps_its_own(app: Celery) -> None:
    """Not that of a block around ``self.retry``."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="flaky", max_retries=2)
    def flaky(self: Any) -> None:
        if not self.request.retries:
            with correlate("inside"):
                raise self.retry(countdown=0)

    with InProcessWorker(app) as worker:
        with correlate("web-1"):
            flaky.delay()
        flaky.delay()
        worker.run()
    found = [message.headers[HEADER].get("correlation_id") for message in worker.seen]
    assert sorted(map(str, found)) == ["None", "None", "web-1", "web-1"]


# --- web requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-request-id": "r1", "x-correlation-id": "c1"}, "r1"),
        ({"x-correlation-id": "c1", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, "c1"),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({"x-request-id": "bad id\n", "x-correlation-id": "c1"}, "c1"),
        ({"x-request-id": "x" * 129}, None),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, None),
        ({}, None),
    ],
)
def test_which_header_it_is_taken_from(headers: dict[str, str], expected: str | None) -> None:
    """The first that is safe; else a new one."""
    found = id_of(headers.get)
    assert found == expected if expected else is_safe(found) and found not in headers.values()


def test_wsgi() -> None:
    """The application and the body it makes later have the id; the response tells it; the thread is left without."""
    seen: list[str | None] = []

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        seen.append(correlation_id())
        start_response("200 OK", [("Content-Type", "text/plain")])

        def body() -> Any:
            seen.append(correlation_id())
            yield b"a"
            yield b"b"

        return body()

    told: list[Any] = []
    answer = WSGIMiddleware(application)({"HTTP_X_REQUEST_ID": "r1"}, lambda status, headers: told.extend(headers))
    assert correlation_id() is None
    assert b"".join(answer) == b"ab"
    assert seen == ["r1", "r1"]
    assert ("X-Request-ID", "r1") in told
    assert correlation_id() is None


def test_asgi() -> None:
    """Two requests at a time do not see each other's; what is no request passes."""
    seen: dict[str, str | None] = {}
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(0)
            seen[scope["path"]] = correlation_id()
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        wrapped = ASGIMiddleware(application)
        await wrapped({"type": "lifespan"}, None, send)
        await asyncio.gather(
            *(
                wrapped({"type": "http", "path": name, "headers": [(b"X-Request-Id", name.encode())]}, None, send)
                for name in ("r1", "r2")
            )
        )

    asyncio.run(main())
    assert seen == {"r1": "r1", "r2": "r2"}
    assert sorted(message["headers"][0] for message in sent) == [(b"x-request-id", b"r1"), (b"x-request-id", b"r2")]


# --- records ----------------------------------------------------------------------------------------------------


def test_each_record_of_a_process_has_it() -> None:
    """Of another thread, which has none, a dash; what a record says itself stays."""
    said: list[str] = []

    def ask(**fields: Any) -> None:
        record = logging.makeLogRecord({"msg": "m", **fields})
        assert CorrelationFilter().filter(record)
        said.append(record.correlation_id)  # type: ignore[attr-defined]

    with correlate("web-1"):
        ask()
        ask(correlation_id="own")
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert said == ["web-1", "own", "-"]
