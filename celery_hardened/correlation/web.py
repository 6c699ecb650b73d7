"""The correlation id of a web request: taken from its headers, or made; told in the response.

``X-Request-ID``, else ``X-Correlation-ID``, else the trace id of ``traceparent``. What is no safe id is not taken.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextvars import Context, copy_context
from typing import Any, Final, TypeAlias

from celery_hardened.correlation.current import correlate, give, is_safe, new_id

#: Response header that tells the id.
ECHO: Final = "X-Request-ID"

_ASKED: Final = ("x-request-id", "x-correlation-id")
_TRACE: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

_Scope: TypeAlias = "MutableMapping[str, Any]"
_Receive: TypeAlias = "Callable[[], Awaitable[Any]]"
_Send: TypeAlias = "Callable[[Any], Awaitable[None]]"


def id_of(header: Callable[[str], str | None]) -> str:
    """The id of a request whose headers *header* answers for, by their names in lower case."""
    for name in _ASKED:
        value = header(name)
        if is_safe(value):
            return str(value)
    traced = _TRACE.match(header("traceparent") or "")
    return traced[1] if traced else new_id()


class WSGIMiddleware:
    """Around a WSGI application: what it publishes and logs in a request has the request's id."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        name = id_of(lambda header: environ.get("HTTP_" + header.upper().replace("-", "_")))

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            if not any(key.lower() == ECHO.lower() for key, _ in headers):
                headers = [*headers, (ECHO, name)]
            return start_response(status, headers, *more)

        # A context of its own: the body is made after this call, and a thread goes on with other requests.
        context = copy_context()
        context.run(give, name)
        body = context.run(self._app, environ, start)
        known = environ.get("wsgi.file_wrapper")
        if isinstance(body, (list, tuple)) or (isinstance(known, type) and isinstance(body, known)):
            return body
        return _Body(body, context)


class _Body:
    """The body of a response, made in the context of its request."""

    def __init__(self, body: Iterable[bytes], context: Context) -> None:
        self._body = body
        self._context = context

    def __iter__(self) -> Iterator[bytes]:
        parts, end = self._context.run(iter, self._body), object()
        while (part := self._context.run(next, parts, end)) is not end:
            yield part  # type: ignore[misc]

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            self._context.run(close)


class ASGIMiddleware:
    """Around an ASGI application, such as one of Starlette, FastAPI or Django: as ``WSGIMiddleware``."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        sent = {key.lower(): value for key, value in reversed(list(scope.get("headers") or ()))}

        def header(name: str) -> str | None:
            value = sent.get(name.encode())
            return None if value is None else value.decode("latin-1")

        with correlate(id_of(header)) as name:

            async def tell(message: Any) -> None:
                if message["type"] in ("http.response.start", "websocket.accept"):
                    headers = list(message.get("headers") or ())
                    if not any(key.lower() == ECHO.lower().encode() for key, _ in headers):
                        message = {**message, "headers": [*headers, (ECHO.lower().encode(), name.encode())]}
                await send(message)

            await self._app(scope, receive, tell)
