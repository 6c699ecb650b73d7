"""A small HTTP server in a thread of its own: metrics and probes of this process.

It may never harm the process that it tells of. So it is bounded: a client that says nothing is let go after some
seconds, and of more than `MOST` clients the one that came first is let go at once, whether it is done or not: clients
that hang cannot keep a probe out. Nothing that fails here ends anything.

A forked child has neither its listening socket nor its connections: a port belongs to the process that opened it, and
is free as soon as that process is gone, whatever becomes of its children.
"""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, Final, TypeAlias
from weakref import WeakMethod

from celery_hardened.metrics.address import Address
from celery_hardened.metrics.render import Page, wants_openmetrics

logger = logging.getLogger("celery_hardened.metrics")

#: Clients at one time.
MOST: Final = 32

#: Seconds that a client may say, or take, nothing.
SILENCE: Final = 5.0

#: Bytes of a request, its headers included, that are read. What comes after is not looked at.
HEAD_MAX: Final = 32 * 1024

#: Seconds between two tries to take a connection when this process has no file left for it.
_NO_FILES: Final = 0.2

#: Why an address cannot be had, whatever its family.
_TAKEN: Final = frozenset({errno.EADDRINUSE, errno.EACCES})

#: Signals that a thread brings upon itself: they are delivered to it, whatever it blocks.
_OWN_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGBUS})

#: Answers from so many bytes on are compressed for who can read that.
_GZIP_FROM: Final = 2048


@dataclass(frozen=True)
class Answer:
    """What a request gets."""

    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


#: Answers one path. Is given the request's headers, their names in lower case; what it raises is a 500.
Route: TypeAlias = "Callable[[Mapping[str, str]], Answer]"

#: Is it as it should be? With every fact that is known.
Probe: TypeAlias = "Callable[[], tuple[bool, Mapping[str, object]]]"


def metrics_route(page: Page) -> Route:
    """``/metrics``: *page* as text 0.0.4, or OpenMetrics for who asks for it."""

    def answer(headers: Mapping[str, str]) -> Answer:
        openmetrics = wants_openmetrics(headers.get("accept", ""))
        return Answer(page.text(openmetrics=openmetrics), content_type=page.content_type(openmetrics=openmetrics))

    return answer


def probe_route(probe: Probe) -> Route:
    """``/livez`` and its like: 200 or 503, and the facts as JSON."""

    def answer(_: Mapping[str, str]) -> Answer:
        good, facts = probe()
        body = json.dumps(facts, indent=1, default=str).encode() + b"\n"
        return Answer(body, status=200 if good else 503, content_type="application/json")

    return answer


class Server:
    """Answers at one address until it is stopped or its process ends.

    Args:
        address: Where. Port 0 is any that is free; ``url`` says which it became.

        routes: By path. ``/`` is made: a list of the others.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(self, address: Address, routes: Mapping[str, Route]) -> None:
        self.routes: Mapping[str, Route] = {"/": _index(routes), **routes}
        self._http = _listening(address, self.routes)
        self.address = Address(address.host, self._http.server_address[1])
        self._thread = threading.Thread(target=self._serve, name="hardened-http", daemon=True)
        forked = WeakMethod(self._http.after_fork)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())

    @property
    def url(self) -> str:
        """Where it is reached from this host, the real port included."""
        return self.address.url

    def start(self) -> None:
        self._thread.start()

    def _serve(self) -> None:
        _leave_signals_to_the_main_thread()
        self._http.serve_forever()

    def stop(self) -> None:
        """Let go of the address, and of every client. Twice changes nothing."""
        if self._thread.is_alive():
            self._http.shutdown()
        self._http.server_close()


def _leave_signals_to_the_main_thread() -> None:
    """None is delivered to this thread, nor to those it starts.

    A thread that starts another looks at the signals of its process, and may take one that woke the main thread.
    Python's handler then runs when the main thread's call into the system returns by itself: a solo worker whose task
    sleeps would hear of its SIGTERM when the task is done. Where threads are greenlets this is the main thread.
    """
    if threading.get_native_id() != threading.main_thread().native_id:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULTS)


def _index(routes: Mapping[str, Route]) -> Route:
    listed = "".join(f'<li><a href="{path}">{path}</a></li>' for path in sorted(routes) if path != "/")
    body = f"<!doctype html><title>celery_hardened</title><h1>celery_hardened</h1><ul>{listed}</ul>\n".encode()
    return lambda _: Answer(body, content_type="text/html; charset=utf-8")


def _listening(address: Address, routes: Mapping[str, Route]) -> _HTTP:
    if address.host:
        family, _, _, _, _ = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        return _HTTP(family, (address.host, address.port), routes)
    try:
        return _HTTP(socket.AF_INET6, ("::", address.port), routes)
    except OSError as error:
        if error.errno in _TAKEN:
            raise
        return _HTTP(socket.AF_INET, ("0.0.0.0", address.port), routes)  # noqa: S104 - a port alone means just that


class _HTTP(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True  # of what the last process here left in TIME_WAIT; not of a port that is taken
    request_queue_size = 4 * MOST  # of the five of socketserver's a burst leaves a probe to its kernel's second try
    allow_reuse_port = False  # Python 3.14 would let two workers share a port, and each scrape meet another one

    def __init__(self, family: int, where: tuple[str, int], routes: Mapping[str, Route]) -> None:
        self.address_family = family
        self.routes = routes
        self._clients: dict[socket.socket, None] = {}
        super().__init__(where, _Request)

    def server_bind(self) -> None:
        # Not http.server's: that asks the name service for this host's name, which may take its time.
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if self.server_address[0] == "::" else 1)
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # It waits still, so the loop would come back at once, and turn as fast as it can.
            time.sleep(_NO_FILES)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(self._clients) >= MOST:
            oldest = next(iter(self._clients), None)
            if oldest is None:
                break
            self._clients.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end, and closes it
        self._clients[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        logger.debug("a client went away, or was let go", exc_info=True)  # noqa: LOG014 - called in a handler

    def after_fork(self) -> None:
        """In a child: these are the parent's."""
        for held in (self.socket, *self._clients):
            with suppress(OSError):
                held.close()


class _Bounded:
    """The first `HEAD_MAX` bytes that a client says. http.server would keep a hundred headers of 64 kB for each."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = HEAD_MAX

    def readline(self, most: int) -> bytes:
        line: bytes = self._stream.readline(min(most, self._left)) if self._left else b""
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)


class _Request(BaseHTTPRequestHandler):
    server: _HTTP
    server_version = "celery_hardened"
    sys_version = ""
    timeout = SILENCE

    def setup(self) -> None:
        super().setup()
        self.rfile = _Bounded(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        found = self._found()
        content = found.body
        packed = len(content) >= _GZIP_FROM and "gzip" in (self.headers.get("Accept-Encoding") or "")
        if packed:
            content = gzip.compress(content, compresslevel=1)
        self.send_response(found.status)
        self.send_header("Content-Type", found.content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _found(self) -> Answer:
        path = self.path.partition("?")[0]
        route = self.server.routes.get(path if path == "/" else path.rstrip("/"))
        if route is None:
            return Answer(f"nothing is at {path}; / lists what is\n".encode(errors="replace"), status=404)
        try:
            return route({name.lower(): value for name, value in self.headers.items()})
        except Exception:
            logger.exception("%s could not be answered", path)
            return Answer(b"this could not be answered; the log of the process says why\n", status=500)

    def log_message(self, *_: Any) -> None:
        """No access log: probes come every few seconds."""
