"""What the shop's processes wrote down, read as it grows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the record (``project/record.py``, ``project/gateway.py``)."""

    at: float
    """Seconds since the epoch."""

    name: str
    id: str | None = None
    """The task's."""

    fields: Mapping[str, Any] = field(default_factory=dict)


class Diary:
    """All that happened so far.

    Args:
        path: The file that the shop's processes append to.
        tell: Told of each event, once, in the order they were written.
    """

    def __init__(self, path: Path, tell: Callable[[Event], object]) -> None:
        self.path = path
        self.events: list[Event] = []
        self._tell = tell
        self._read = 0
        path.touch()

    def read_on(self) -> None:
        """Take in what was written since the last time; half a line waits for its other half."""
        with self.path.open("rb") as record:
            record.seek(self._read)
            whole, newline, _ = record.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for line in whole.splitlines():
            fields = json.loads(line)
            event = Event(fields.pop("at"), fields.pop("event"), fields.pop("id", None), fields)
            self.events.append(event)
            self._tell(event)

    def of(self, name: str, task_id: str | None = None) -> list[Event]:
        """The events of this name, of one task if *task_id* is given."""
        return [event for event in self.events if event.name == name and task_id in (None, event.id)]

    def starts(self, task_id: str) -> int:
        """How often a process began to run this task."""
        return len(self.of("started", task_id))
