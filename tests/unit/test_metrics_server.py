"""The small server: what it answers, and that nothing a client does can pile up in it."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection

import pytest

from celery_hardened.metrics import server as server_module
from celery_hardened.metrics.address import Address
from celery_hardened.metrics.registry import Registry
from celery_hardened.metrics.render import Page
from celery_hardened.metrics.server import HEAD_MAX, MOST, Answer, Route, Server, metrics_route, probe_route
from tests.support.until import until

Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[Server] = []

    def start(routes: Mapping[str, Route], where: str = "127.0.0.1:0") -> Server:
        made.append(Server(Address.parse(where), routes))
        made[-1].start()
        return made[-1]

    yield start
    for server in made:
        server.stop()


def ask(server: Server, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    client = HTTPConnection(server.address.host or "127.0.0.1", server.address.port, timeout=30)
    client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = client.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    client.close()
    return found


def test_metrics(serve: Serve) -> None:
    """Text 0.0.4, OpenMetrics for who names it, compressed for who can read that; HEAD is the same without a body."""
    server = serve({"/metrics": metrics_route(Page(Registry()))})
    status, headers, body = ask(server, "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"process_cpu_seconds_total" in body
    _, headers, body = ask(server, "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    _, headers, body = ask(server, "/metrics", Accept_Encoding="gzip")
    assert "content-encoding" not in headers or b"process_cpu" in gzip.decompress(body)
    status, headers, body = ask(server, "/metrics", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 500


def test_large_answers_are_compressed(serve: Serve) -> None:
    server = serve({"/large": lambda _: Answer(b"a" * 100_000), "/small": lambda _: Answer(b"a")})
    _, headers, body = ask(server, "/large", Accept_Encoding="gzip, deflate")
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body) == b"a" * 100_000
    assert ask(server, "/large")[2] == b"a" * 100_000
    assert ask(server, "/small", Accept_Encoding="gzip")[2] == b"a"


def test_probes_and_index(serve: Serve) -> None:
    """200 or 503 with the facts; what is there is listed; what is not is 404; a slash or a query more is no matter."""
    good = True
    server = serve({"/livez": probe_route(lambda: (good, {"good": good}))})
    assert ask(server, "/livez")[0] == 200
    good = False
    status, headers, body = ask(server, "/livez/?verbose")
    assert (status, headers["content-type"], json.loads(body)) == (503, "application/json", {"good": False})
    assert b'<a href="/livez">' in ask(server, "/")[2]
    assert ask(server, "/nothing")[0] == 404
    assert ask(server, "/livez", method="POST")[0] == 501


def test_a_route_that_fails(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """500 with a sentence; what went wrong is in the log, and not told to the client."""

    def fails(_: Mapping[str, str]) -> Answer:
        raise RuntimeError("password=hunter2")

    server = serve({"/metrics": fails})
    with caplog.at_level(logging.ERROR, logger="celery_hardened.metrics"):
        status, _, body = ask(server, "/metrics")
    assert status == 500
    assert b"hunter2" not in body
    assert b"Traceback" not in body
    assert "hunter2" in caplog.text


def test_clients_that_hang(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """More clients that say nothing than there is room for: a probe is answered at once, and threads do not pile up."""
    monkeypatch.setattr(server_module._Request, "timeout", 300.0)  # none goes by itself
    server = serve({"/livez": probe_route(lambda: (True, {}))})
    before, began = threading.active_count(), time.monotonic()
    silent = [socket.create_connection(("127.0.0.1", server.address.port)) for _ in range(4 * MOST)]
    try:
        assert ask(server, "/livez")[0] == 200
        assert time.monotonic() - began < 10, "the kernel has put connections off"  # a few tenths of a second
        until(lambda: threading.active_count() <= before + MOST + 1, what="the oldest to be let go")
    finally:
        for one in silent:
            one.close()


def test_a_client_that_says_too_much(serve: Serve) -> None:
    """Of endless headers the first are read, and no more is kept of them."""
    told: list[int] = []

    def count(headers: Mapping[str, str]) -> Answer:
        told.append(sum(len(name) + len(value) for name, value in headers.items()))
        return Answer(b"")

    server = serve({"/": count})
    with socket.create_connection(("127.0.0.1", server.address.port)) as client, suppress(OSError):
        client.sendall(b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: %s\r\n" % (n, b"a" * 60_000) for n in range(90)))
        client.sendall(b"\r\n")
    until(lambda: told, what="the request to be answered")
    assert told[0] <= HEAD_MAX


def test_no_file_is_left(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has run out of files waits for one. Turning meanwhile, it would take a CPU from its tasks."""
    tries: list[int] = []

    def accept(_: socket.socket) -> None:
        tries.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    server = serve({"/livez": probe_route(lambda: (True, {}))})
    with monkeypatch.context() as full:
        full.setattr(socket.socket, "accept", accept)
        client = socket.create_connection(("127.0.0.1", server.address.port))
        until(lambda: len(tries) > 3, what="some tries")
    client.close()
    assert len(tries) < 20
    assert ask(server, "/livez")[0] == 200


def test_a_port_that_is_taken(serve: Serve) -> None:
    """Two servers never share a port."""
    first = serve({})
    with pytest.raises(OSError, match="in use"):
        Server(first.address, {})
    first.stop()
    again = Server(first.address, {})
    again.stop()


@pytest.mark.parametrize("where", ["[::1]:0", "0", "localhost:0"])
def test_addresses(serve: Serve, where: str) -> None:
    """IPv6, all interfaces, a name; the real port is in the URL."""
    server = serve({"/livez": probe_route(lambda: (True, {}))}, where)
    assert server.address.port != 0
    with urllib.request.urlopen(server.url + "livez", timeout=10) as answer:
        assert answer.status == 200


def test_all_interfaces_are_both_families(serve: Serve) -> None:
    """A port alone answers IPv4 and IPv6."""
    server = serve({"/livez": probe_route(lambda: (True, {}))}, "0")
    for host in ("127.0.0.1", "[::1]"):
        with urllib.request.urlopen(f"http://{host}:{server.address.port}/livez", timeout=10) as answer:
            assert answer.status == 200


def test_a_forked_child_has_nothing_of_it(serve: Serve) -> None:
    """The port is free as soon as the process that opened it has let go, while a child of it lives on."""
    server = serve({})
    ends, go = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: this process has threads; the child has not
        child = os.fork()
    if child == 0:
        os.close(go)
        os.read(ends, 1)
        os._exit(0)
    try:
        server.stop()
        again = Server(server.address, {})
        again.stop()
    finally:
        os.close(go)
        os.close(ends)
        os.waitpid(child, 0)


def test_signals_are_for_the_main_thread(serve: Serve) -> None:
    """A thread that starts threads may take a signal, and the main thread would sleep on."""

    def blocked(_: Mapping[str, str]) -> Answer:
        return Answer(" ".join(str(int(number)) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())).encode())

    _, _, body = ask(serve({"/blocked": blocked}), "/blocked")
    numbers = {int(number) for number in body.split()}
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1} <= numbers
    assert signal.SIGSEGV not in numbers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_signals_where_threads_are_greenlets() -> None:
    """There they run in the main thread, which has to get its signals."""
    source = """
from gevent import monkey; monkey.patch_all()
import signal, urllib.request
from celery_hardened.metrics.address import Address
from celery_hardened.metrics.server import Answer, Server
server = Server(Address.parse("127.0.0.1:0"), {"/here": lambda _: Answer(b"here")})
server.start()
assert urllib.request.urlopen(server.url + "here").read() == b"here"
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "set()"
