"""Loopback ports that nobody listens on."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

#: The lowest port that may be given, and by how many those that the kernel gives to everybody have to lie above it.
_LOWEST, _ROOM = 12_000, 2_000

#: Test processes that run side by side each have ports of their own: what one was given and does not listen on yet
#: looks free to the others.
_SIDES = 16
_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SIDES

_given: set[int] = set()
_dice = random.SystemRandom()


def free_port() -> int:
    """A free port, never the same twice in this process, nor one of those of a process beside it.

    Of those that the kernel gives to nobody who asks for any, where that leaves some: one that it gives may be
    another's connection, or server, before it is listened on.
    """
    above = _kernels_lowest()
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", _drawn(above)))
            port = int(probe.getsockname()[1])
            if port not in _given:
                _given.add(port)
                return port


def _drawn(above: int) -> int:
    """Which to try; 0: let the kernel choose."""
    return _dice.randrange(_LOWEST + _SIDE, above, _SIDES) if above >= _LOWEST + _ROOM else 0


def _kernels_lowest() -> int:
    """The lowest port that the kernel gives by itself; 0: it is not known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 0
