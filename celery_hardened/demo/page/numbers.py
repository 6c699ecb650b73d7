"""All that the page shows at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue."""

    name: str
    waiting: int
    oldest: float | None = None
    """Seconds; ``None``: nothing waits, or it cannot be told."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """How the deliveries of one task ended."""

    name: str
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LetterRow:
    """One open dead letter."""

    at: float
    """Seconds since the demo began."""

    task: str
    task_id: str
    reason: str
    error: str


@dataclass(frozen=True, slots=True)
class LeaderRow:
    """Which beat leads."""

    pid: str
    term: int
    since: float
    """Seconds that it has led."""

    left: float
    """Seconds of its lease that are left."""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A worker or a beat, as it says itself."""

    name: str
    kind: str
    pid: int
    state: str
    """``ready``, ``alive``, ``silent`` or ``starting``."""

    because: str = ""
    active: int = 0
    places: int = 0
    """How many tasks may run at once; 0 for a beat."""

    children_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The page's content."""

    elapsed: float = 0.0
    """Seconds since the demo began."""

    scene: str = "setting up"
    sent: int = 0
    """Messages that the demo's producer has sent. The books of the demo; what follows is counted by others."""

    queues: tuple[QueueRow, ...] = ()
    delayed: int | None = None
    unacked: int | None = None
    tasks: tuple[TaskRow, ...] = ()
    letters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Open dead letters by queue and reason."""

    latest: tuple[LetterRow, ...] = ()
    """Newest first."""

    leader: LeaderRow | None = None
    processes: tuple[ProcessRow, ...] = ()

    def ended(self, outcome: str) -> int:
        """Deliveries of all tasks that ended so."""
        return sum(task.outcomes.get(outcome, 0) for task in self.tasks)

    @property
    def open_letters(self) -> int:
        return sum(self.letters.values())

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self.queues)
