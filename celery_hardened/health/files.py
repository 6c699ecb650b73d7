"""Probe files, for who asks by a command instead of HTTP.

::

    DIR/live      is there and renewed each second while the process is live
    DIR/ready     likewise while it is ready
    DIR/started   likewise once it has started
    DIR/http      where its metrics and probes are, if they are anywhere

A process that hangs or was killed renews nothing, so a probe asks for the age of the file too.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from celery_hardened.health.state import Health

logger = logging.getLogger("celery_hardened.health")

NAMES: Final = ("live", "ready", "started")
HTTP: Final = "http"


class ProbeFiles:
    """The files of one process. A folder that cannot be written to is said once, and is no reason to end.

    Args:
        folder: Made if it is not there. One process each.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._pid = os.getpid()
        self._said = False
        self.remove()  # what a process that was killed left behind

    def write(self, health: Health) -> None:
        """Renew what is true, and remove what is not."""
        try:
            for name in NAMES:
                path = self._folder / name
                if getattr(health, name).good:
                    self._renew(path)
                else:
                    path.unlink(missing_ok=True)
        except OSError as problem:
            self._complain(problem)
        else:
            self._said = False

    def tell_url(self, url: str) -> None:
        """Write where its metrics are."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._folder / f".{HTTP}.{self._pid}"
            part.write_text(url + "\n")
            part.replace(self._folder / HTTP)
        except OSError as problem:
            self._complain(problem)

    def remove(self) -> None:
        """They say nothing any more. Not in a child, whose parent's they are."""
        if os.getpid() != self._pid:
            return
        for name in (*NAMES, HTTP):
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    def _renew(self, path: Path) -> None:
        now = time.time()
        try:
            os.utime(path, (now, now))
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.touch()

    def _complain(self, problem: OSError) -> None:
        if not self._said:
            self._said = True
            logger.error("the probe files in %s cannot be written: %s", self._folder, problem)
