"""Where schedules come from: the configuration, a database, or what a user writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from celery_hardened.beat.schedule import Problem, Schedule


@dataclass(frozen=True, slots=True)
class Gone:
    """A schedule that is not there any more, or is switched off."""

    name: str


Change: TypeAlias = Schedule | Problem | Gone


class Source(Protocol):
    """Keeps schedules. A beat asks it from its main loop, which must never wait for a database."""

    def open(self, woken: Callable[[], None]) -> None:
        """Called once, before all else, in the process that will fire; *woken* tells it that there are changes."""

    def load(self) -> Sequence[Schedule | Problem]:
        """All schedules. Called by a beat that begins to lead, and by the command line."""

    def is_ready(self) -> bool:
        """Could it be read since this beat leads? If not for long, a beat lets another one lead. Does not block."""

    def changes(self) -> Sequence[Change]:
        """What changed since ``load`` or the last call. Does not block; raises nothing."""

    def lead(self, leading: bool) -> None:
        """This beat leads from now on, or does not: only the leader need watch for changes."""

    def fired(self, schedule: Schedule, *, at: float) -> None:
        """*schedule* was fired at the instant *at*. Does not block; raises nothing."""

    def close(self) -> None:
        """Write what is noted still, for a few seconds at most, and let go of all connections."""
