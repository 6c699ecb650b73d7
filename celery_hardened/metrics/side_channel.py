"""What pool processes tell the worker's main process: counts, and how a run ended where the result does not say.

::

    child      one write to a pipe, before the task's result is sent
    parent     reads it each second, at each scrape, and before it counts a task that may have been replayed

A write of at most ``PIPE_BUF`` bytes is whole or not at all, so lines of many children do not mix, and none is torn by
the death of its writer. What was written survives that death; what a child has not written when it is killed is counted
by nobody, and its run as ``worker_lost``.
A full pipe is waited for by no task: counts are kept in the child and sent with the next ones, or when it ends. A note
is waited for, up to a second: its result would be counted as something else.

A process that a task makes for itself tells through the same pipe, if it was forked. One that was spawned has no pipe;
it counts for itself, as any process that is not ours.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from select import PIPE_BUF
from typing import Any, Final

from celery_hardened.metrics.family import OTHER

logger = logging.getLogger("celery_hardened.side_channel")

#: Bytes that the pipe may hold, where the system lets us say so.
_SIZE: Final = 1024 * 1024

#: Seconds for which a note is tried again when the pipe is full: it is read within a second.
_PATIENCE: Final = 1.0

_F_SETPIPE_SZ: Final = 1031


class _KeptOpen(logging.NullHandler):
    """Logs nothing. Celery closes all files in the process of a beat that a worker embeds, but those of loggers;
    and the number of a closed one may be a connection's next."""

    def __init__(self, stream: int) -> None:
        super().__init__()
        self.stream = stream


class SideChannel:
    """A pipe from the children of this process. To be made before they are forked.

    Args:
        count: Called in the parent for each count that was told: metric, labels, by how much.

        note: Called for each note: task id, outcome.

        observe: Called for each value of a histogram: metric, labels, value.

        gauge: Called for each value of a gauge, likewise.
    """

    def __init__(
        self,
        count: Callable[[str, tuple[str, ...], float], Any],
        note: Callable[[str, str], Any],
        observe: Callable[[str, tuple[str, ...], float], Any],
        gauge: Callable[[str, tuple[str, ...], float], Any],
    ) -> None:
        self._count = count
        self._note = note
        self._observe = observe
        self._gauge = gauge
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        with suppress(OSError, ImportError):
            import fcntl

            fcntl.fcntl(self._write, _F_SETPIPE_SZ, _SIZE)
        self._kept_open = _KeptOpen(self._write)
        logger.addHandler(self._kept_open)
        # Re-entrant: a signal handler of a task's may count while its own thread does.
        self._lock = threading.RLock()
        self._rest = b""
        self._kept: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(float)

    # --- in a child -----------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """This is a child now. It tells, and reads nothing."""
        self._lock = threading.RLock()
        self._kept = defaultdict(float)
        if self._read >= 0:  # else a full pipe would look as if somebody were there to empty it
            os.close(self._read)
            self._read = -1

    def tell_count(self, family: str, labels: tuple[str, ...], by: float) -> None:
        """Never waits, never raises."""
        with self._lock:
            self._kept[family, labels] += by
            self._send_kept()

    def flush(self) -> None:
        """Tell what is kept, if the parent reads it within a second."""
        until = time.monotonic() + _PATIENCE
        with self._lock:
            while not self._send_kept() and time.monotonic() < until:
                time.sleep(0.005)

    def _send_kept(self) -> bool:
        for (name, labels), number in list(self._kept.items()):
            if not self._sent(["c", name, labels, number]):
                return False
            del self._kept[name, labels]
        return True

    def tell_value(self, family: str, labels: tuple[str, ...], value: float) -> None:
        """Likewise; one that finds the pipe full is left out."""
        self._sent(["v", family, labels, value])

    def tell_gauge(self, family: str, labels: tuple[str, ...], value: float) -> None:
        """Likewise: the next one says it anew."""
        self._sent(["g", family, labels, value])

    def tell_note(self, task_id: str, outcome: str) -> None:
        """How the run of *task_id* ends. Never raises."""
        until = time.monotonic() + _PATIENCE
        while not self._sent(["n", task_id, outcome]) and time.monotonic() < until:
            time.sleep(0.005)

    def _sent(self, said: list[Any]) -> bool:
        line = json.dumps(said).encode() + b"\n"
        if len(line) > PIPE_BUF:
            if said[0] == "n":
                return True  # an id of four thousand letters is nobody's
            line = json.dumps([said[0], said[1], [OTHER] * len(said[2]), *said[3:]]).encode() + b"\n"
        try:
            os.write(self._write, line)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the parent is gone, and with it who could ask
        return True

    # --- in the parent ---------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take what was told so far. Never waits, never raises.

        And no more: many children that publish all the time write as fast as this can read.
        """
        left = _SIZE  # more does not fit in
        with self._lock:
            while self._read >= 0 and left > 0:
                try:
                    found = os.read(self._read, left)
                except OSError:  # nothing there
                    return
                if not found:
                    return
                left -= len(found)
                *lines, self._rest = (self._rest + found).split(b"\n")
                for line in lines:
                    try:
                        self._take(line)
                    except (ValueError, TypeError, LookupError):
                        logger.warning("a pool process has told what nobody understands: %r", line[:100])

    def _take(self, line: bytes) -> None:
        kind, *said = json.loads(line)
        if kind == "c":
            self._count(said[0], tuple(said[1]), said[2])
        elif kind == "v":
            self._observe(said[0], tuple(said[1]), said[2])
        elif kind == "g":
            self._gauge(said[0], tuple(said[1]), said[2])
        elif kind == "n":
            self._note(said[0], said[1])
        else:
            raise ValueError(kind)

    def close(self) -> None:
        """Nothing is told or taken any more."""
        logger.removeHandler(self._kept_open)
        for end in (self._read, self._write):
            if end >= 0:
                with suppress(OSError):
                    os.close(end)
        self._read = self._write = -1
