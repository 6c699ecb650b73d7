"""Loopback ports that nobody listens on."""

from __future__ import annotations

import socket

_given: set[int] = set()


def free_port() -> int:
    """A free port, never the same twice in this process."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port
