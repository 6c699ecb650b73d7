"""One coming slot that somebody wants passed over: which one it may be, and how that is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from celery_hardened.beat.course import Course, upcoming
from celery_hardened.beat.own import Own
from celery_hardened.beat.record import record_of
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.steps import decoded, readable
from celery_hardened.errors import HardenedError


class NotSkippedError(HardenedError):
    """No slot was skipped, or a skip was not taken back. Nothing was changed."""

    def __init__(self, schedule: str, problem: str) -> None:
        super().__init__(schedule, problem)
        self.schedule = schedule
        self.problem = problem

    def __str__(self) -> str:
        return f"schedule {self.schedule!r}: {self.problem}."


@dataclass(frozen=True, slots=True)
class Skip:
    """The slot, by whom it was skipped, why and when. Instants are seconds since the epoch."""

    slot: float
    by: str
    why: str
    at: float

    @classmethod
    def parse(cls, value: bytes | str) -> Skip | None:
        """What is kept; ``None``: nobody of ours has written it, and Redis takes it for no skip either."""
        slot, _, text = decoded(value).partition(" ")
        if not (slot.isascii() and slot.isdecimal()):
            return None
        try:
            read: Any = json.loads(text)
        except ValueError:
            read = {}
        said = read if isinstance(read, dict) else {}
        at = said.get("at")
        return cls(
            slot=int(slot) / 1000,
            by=readable(said.get("by", "")),
            why=readable(said.get("why", "")),
            at=float(at) if isinstance(at, (int, float)) else 0.0,
        )

    def stands(self, record: str | None) -> bool:
        """Is its slot still to be decided, by the text of the schedule's *record*?

        What beats pass over for another reason, such as a pause, leaves a skip behind that means nothing more.
        """
        kept = record_of(record or "")
        return kept is None or kept.cursor < self.slot


def next_to_skip(schedule: Schedule, found: Course, now: float) -> float:
    """The coming slot of *schedule*: the first one after *now* that is not decided.

    Raises:
        NotSkippedError: It has none that can be told.
    """
    if isinstance(schedule.when.slots(found.record.anchor), Own):
        # Its next slot may be another one when it is asked again, and would then be fired all the same.
        raise NotSkippedError(schedule.name, "its class works out itself when it is due; pause it instead")
    if not found.anchored:
        raise NotSkippedError(schedule.name, "its slots are counted from when a beat first sees it, and none has yet")
    slot = next(upcoming(schedule, found, now), None)
    if slot is None:
        raise NotSkippedError(schedule.name, "it has no slots to come")
    return slot
