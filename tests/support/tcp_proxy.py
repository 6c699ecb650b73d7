"""A TCP proxy on loopback that fails on demand: cut, refuse, reset, fall silent, crawl."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Literal

Direction = Literal["up", "down"]

#: Close by RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)


class TcpProxy:
    """
    Forwards ``127.0.0.1:port`` to *target_port*, from a thread of its own.

    Attributes:
        port: Where it listens.
        latency: Seconds every chunk is held back, in each direction.
        rate: Bytes per second in each direction; ``None``: no limit.
        accepted: Connections forwarded so far.
    """

    def __init__(self, target_port: int) -> None:
        self.latency = 0.0
        self.rate: float | None = None
        self.accepted = 0
        self._target_port = target_port
        self._refusing = False
        self._silent: frozenset[Direction] = frozenset()
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: dict[asyncio.Task[None], socket.socket] = {}
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._thread.start()

    # --- faults, from any thread ------------------------------------------------------------

    def reset(self) -> None:
        """RST to every connection. New ones are welcome."""
        self._in_loop(lambda: self._end_all(reset=True))

    def close(self) -> None:
        """FIN to every connection. New ones are welcome."""
        self._in_loop(lambda: self._end_all(reset=False))

    def silence(self, *directions: Direction) -> None:
        """A cut nobody is told of: connections stay, and what is sent goes nowhere. Default: both directions."""
        self._silent = frozenset(directions or ("up", "down"))

    def down(self) -> None:
        """Reset every connection and every new one, until `heal`."""
        self._refusing = True
        self.reset()

    def close_port(self) -> None:
        """Nobody listens here any more, for good: new connections are refused as those to a server that is not there.
        Connections stay."""
        self._in_loop(self._stop_listening)

    def heal(self) -> None:
        """End every fault but a closed port. Connections that lost bytes are reset: no stream goes on with a hole."""
        lost, self._silent = self._silent, frozenset()
        self._refusing, self.latency, self.rate = False, 0.0, None
        if lost:
            self.reset()

    def stop(self) -> None:
        """End it and all its connections."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    # --- inside its thread ------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._listening, self._accept)
        self._loop.run_forever()

    def _in_loop(self, step: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            step()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10), "the proxy's thread is stuck"

    async def _shut(self) -> None:
        """Leaves no socket to the garbage collector, which would complain inside whatever test runs then."""
        self._stop_listening()
        serving = dict(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        ends = list(self._writers)
        self._end_all(reset=True)
        await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)
        # A task that is cancelled before its first step never runs: its client is still as it was accepted.
        for client in serving.values():
            client.close()

    def _stop_listening(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _end_all(self, *, reset: bool) -> None:
        for writer in list(self._writers):
            if reset:
                _reset(writer)
            else:
                writer.close()

    def _accept(self) -> None:
        # Not `asyncio.start_server`: it loses a client that it accepts while it is closed.
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = self._listening.accept()
            task = self._loop.create_task(self._serve(client))
            self._serving[task] = client
            task.add_done_callback(self._serving.pop)

    async def _serve(self, client: socket.socket) -> None:
        """Ends with its connections closed; cancelled, it leaves those that are open to who did it."""
        reader, writer = await asyncio.open_connection(sock=client)
        self._writers.add(writer)
        ends = {writer}
        if self._refusing:
            _reset(writer)
        else:
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            except OSError:  # nobody listens behind us: the client is to see the same
                _reset(writer)
            else:
                ends.add(far_writer)
                self._writers.add(far_writer)
                self.accepted += 1
                await asyncio.gather(self._pump("up", reader, far_writer), self._pump("down", far_reader, writer))
        self._writers -= ends
        for end in ends:
            end.close()

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                pause = self.latency + (len(data) / self.rate if self.rate else 0.0)
                if pause:
                    await asyncio.sleep(pause)
                if direction in self._silent:
                    continue
                writer.write(data)
                await writer.drain()
        if direction not in self._silent:
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
