"""The proxy's faults are what they are called: a test that cuts a line must have cut it."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets."""

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(1024):
                connection.sendall(data)

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=accept, args=(server,), daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)


@pytest.fixture
def proxy(echo_port: int, start_proxy: Callable[[int], TcpProxy]) -> TcpProxy:
    return start_proxy(echo_port)


@contextlib.contextmanager
def line(proxy: TcpProxy) -> Iterator[Callable[..., bytes]]:
    """A connection through the proxy, as a call that sends ``x`` and returns the answer."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection:

        def ask(within: float = 30.0) -> bytes:
            connection.settimeout(within)
            connection.sendall(b"x")
            return connection.recv(1)

        yield ask


def test_it_forwards(proxy: TcpProxy) -> None:
    """Without a fault it is not there."""
    with line(proxy) as ask:
        assert ask() == b"x"
    assert proxy.accepted == 1


def test_reset_and_close(proxy: TcpProxy) -> None:
    """RST is an error at the other end, FIN an end of stream; both let new connections in."""
    with line(proxy) as ask:
        assert ask() == b"x"
        proxy.reset()
        with pytest.raises(OSError, match="reset"):
            ask()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        proxy.close()
        assert connection.recv(1) == b""
    with line(proxy) as ask:
        assert ask() == b"x"


def test_silence(proxy: TcpProxy) -> None:
    """A silent line stays connected and answers nothing; healed, it is reset and new ones work."""
    with line(proxy) as ask:
        assert ask() == b"x"
        proxy.silence("down")
        with pytest.raises(TimeoutError):
            ask(within=0.5)
        proxy.heal()
        with pytest.raises(OSError, match="reset"):
            ask()
    with line(proxy) as ask:
        assert ask() == b"x"


def test_down(proxy: TcpProxy) -> None:
    """A line that is down resets whoever comes, until it is healed."""
    proxy.down()
    with pytest.raises(OSError, match=r"reset|aborted|Broken"), line(proxy) as ask:
        ask()

    proxy.heal()

    with line(proxy) as ask:
        assert ask() == b"x"


def test_latency(proxy: TcpProxy) -> None:
    """Every chunk is held back, in both directions."""
    proxy.latency = 0.2
    with line(proxy) as ask:
        began = time.monotonic()
        assert ask() == b"x"
        assert time.monotonic() - began >= 0.4


def test_nobody_behind_it(start_proxy: Callable[[int], TcpProxy]) -> None:
    """With no server behind it, a client sees no open line."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy = start_proxy(unused.getsockname()[1])

        def refused() -> bool:
            with contextlib.suppress(OSError), line(proxy) as ask:
                return ask() == b""
            return True

        until(refused, within=30, what="the client to be refused")


def test_an_end_while_clients_come_leaves_no_socket() -> None:
    """What it left would be an error in whatever test the garbage collector runs in."""

    def come(port: int) -> None:
        with contextlib.suppress(OSError):
            for _ in range(40):
                clients.append(socket.create_connection(("127.0.0.1", port), 5))

    left: list[str] = []
    with socket.create_server(("127.0.0.1", 0), backlog=512) as far, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.unraisablehook", lambda found: left.append(str(found.exc_value)))
        for _ in range(10):
            proxy = TcpProxy(far.getsockname()[1])
            clients: list[socket.socket] = []
            coming = threading.Thread(target=come, args=(proxy.port,))
            coming.start()
            while len(clients) < 5 and coming.is_alive():
                pass
            proxy.stop()
            coming.join()
            for client in clients:
                client.close()
            del proxy
            gc.collect()
    assert left == []
