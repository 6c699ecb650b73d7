"""``MIDDLEWARE`` entry that gives each request its correlation id; see ``celery_hardened.correlation``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import FileResponse

from celery_hardened.correlation.current import correlate
from celery_hardened.correlation.web import ECHO, id_of


def correlation_middleware(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Tasks that a view publishes, also on its commit, have the id of its request. Works under WSGI and ASGI.

    To be first in ``MIDDLEWARE``: what stands before it logs without the id.
    """
    if iscoroutinefunction(get_response):

        async def answer_async(request: Any) -> Any:
            with correlate(id_of(request.headers.get)) as name:
                return _told(await get_response(request), name)

        return answer_async

    def answer(request: Any) -> Any:
        with correlate(id_of(request.headers.get)) as name:
            return _told(get_response(request), name)

    return answer


def _told(response: Any, name: str) -> Any:
    if not response.has_header(ECHO):
        response[ECHO] = name
    if response.streaming and not isinstance(response, FileResponse):  # a server may send a file by itself
        # Its body is made after the middleware is through.
        body = response.streaming_content
        response.streaming_content = _parts_async(body, name) if response.is_async else _parts(body, name)
    return response


# The id is given around each part, not around all: between two the thread does something else.


def _parts(body: Iterator[bytes], name: str) -> Iterator[bytes]:
    while True:
        with correlate(name):
            try:
                part = next(body)
            except StopIteration:
                return
        yield part


async def _parts_async(body: AsyncIterator[bytes], name: str) -> AsyncIterator[bytes]:
    while True:
        with correlate(name):
            try:
                part = await anext(body)
            except StopAsyncIteration:
                return
        yield part


# As Django's own decorator does, which has no types.
correlation_middleware.sync_capable = True  # type: ignore[attr-defined]
correlation_middleware.async_capable = True  # type: ignore[attr-defined]
