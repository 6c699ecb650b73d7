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
        self.port = 0
        self.latency = 0.0
        self.rate: float | None = None
        self.accepted = 0
        self._target_port = target_port
        self._refusing = False
        self._silent: frozenset[Direction] = frozenset()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="tcp-proxy", daemon=True)
        self._thread.start()
        assert listening.wait(10), "the proxy did not start"

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

        def step() -> None:
            assert self._server is not None
            self._server.close()

        self._in_loop(step)

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

    def _run(self, listening: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        listening.set()
        self._loop.run_forever()

    def _in_loop(self, step: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            step()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10), "the proxy's thread is stuck"

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        self._end_all(reset=True)
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _end_all(self, *, reset: bool) -> None:
        for writer in list(self._writers):
            if reset:
                _reset(writer)
            else:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            _reset(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # nobody listens behind us: the client is to see the same
            _reset(writer)
            return
        self.accepted += 1
        ends = {writer, far_writer}
        self._writers |= ends
        # A cancelled connection is one that stop() ended; asyncio would log it as an error.
        with contextlib.suppress(asyncio.CancelledError):
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
