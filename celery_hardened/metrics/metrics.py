"""What all code of ours counts with. Where it goes depends on the process, and the code need not know:

::

    worker, beat, exporter    the registry of this process, shown at its own endpoint
    pool process              the side channel, and from there the registry of its worker
    any other (web, shell)    prometheus-client's objects in its own registry, if it has that installed
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast
from weakref import WeakMethod

from celery_hardened.metrics.catalogue import BY_NAME, PROCESS_START
from celery_hardened.metrics.client_sink import ClientSink
from celery_hardened.metrics.family import Family
from celery_hardened.metrics.outcome import Outcome
from celery_hardened.metrics.registry import CAPS, Labels, Registry
from celery_hardened.metrics.side_channel import SideChannel

Place: TypeAlias = Literal["off", "here", "child", "client"]

#: Notes that nobody asked for, of tasks whose end was not seen: so many are kept.
_NOTES: Final = 10_000


class Metrics:
    """The metrics of one app in this process.

    Args:
        on: ``hardened_metrics``. Without it nothing is counted.

        caps: See ``Registry``.
    """

    def __init__(self, *, on: bool = True, caps: Mapping[str, int] = CAPS) -> None:
        self.registry = Registry(caps)
        self.place: Place = "client" if on else "off"
        self._client = ClientSink(caps)
        self._channel: SideChannel | None = None
        self._notes: dict[str, Outcome] = {}
        self._notes_lock = threading.RLock()
        forked = WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())

    # --- what code calls ------------------------------------------------------------------------------------

    def inc(self, family: Family, labels: Labels = (), by: float = 1) -> None:
        """Add *by* to a counter."""
        if self.place == "here":
            self.registry.inc(family, labels, by)
        elif self.place == "child" and self._channel is not None:
            self._channel.tell_count(family.name, labels, by)
        elif self.place == "client":
            self._client.inc(family, labels, by)

    def observe(self, family: Family, labels: Labels, value: float) -> None:
        """Put *value* into a histogram."""
        if self.place == "here":
            self.registry.observe(family, labels, value)
        elif self.place == "child" and self._channel is not None:
            self._channel.tell_value(family.name, labels, value)
        elif self.place == "client":
            self._client.observe(family, labels, value)

    def set(self, family: Family, labels: Labels, value: float) -> None:
        """Set a gauge. Not in a process that is not ours, which shows no gauge of ours."""
        if self.place == "here":
            self.registry.set(family, labels, value)
        elif self.place == "child" and self._channel is not None:
            self._channel.tell_gauge(family.name, labels, value)

    def note(self, task_id: str, outcome: Outcome) -> None:
        """Say how the run of *task_id* ends, where neither its result nor its exception (see ``pipeline.ending``)
        will say so. To be said before the result."""
        if self.place == "child" and self._channel is not None:
            self._channel.tell_note(task_id, outcome)
        elif self.place == "here":
            self._take_note(task_id, outcome)

    def flush(self) -> None:
        """A child ends: say what is not said yet."""
        if self.place == "child" and self._channel is not None:
            self._channel.flush()

    # --- what the main process calls -----------------------------------------------------------------------------

    def keep_here(self, *, forks: bool = False) -> None:
        """This process shows its own numbers from now on; *forks*: its children tell it theirs."""
        if self.place == "off":
            return
        if self.place != "here":
            self.registry.set(PROCESS_START, (), time.time())
        self.place = "here"
        if forks and self._channel is None:
            self._channel = SideChannel(self._count, self._take_note, self._observe, self._set)

    def drain(self) -> None:
        """Take what children have told so far."""
        if self._channel is not None and self.place == "here":
            self._channel.drain()

    def noted(self, task_id: str) -> Outcome | None:
        """What was noted of *task_id*, once."""
        if self._channel is not None and self.place == "here":
            self._channel.drain()
        with self._notes_lock:
            return self._notes.pop(task_id, None)

    def _take_note(self, task_id: str, outcome: str) -> None:
        with self._notes_lock:
            while len(self._notes) >= _NOTES:
                self._notes.pop(next(iter(self._notes)))
            self._notes[task_id] = cast("Outcome", outcome)

    def _count(self, name: str, labels: Labels, by: float) -> None:
        if name in BY_NAME:
            self.registry.inc(BY_NAME[name], labels, by)

    def _observe(self, name: str, labels: Labels, value: float) -> None:
        if name in BY_NAME:
            self.registry.observe(BY_NAME[name], labels, value)

    def _set(self, name: str, labels: Labels, value: float) -> None:
        if name in BY_NAME:
            self.registry.set(BY_NAME[name], labels, value)

    def _after_fork(self) -> None:
        self.registry.after_fork()
        self._notes_lock = threading.RLock()
        if self.place == "here":
            self.place = "child" if self._channel is not None else "off"
        if self._channel is not None:
            self._channel.after_fork()
