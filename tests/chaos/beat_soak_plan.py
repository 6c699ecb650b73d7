"""The schedules of the beat soak: what the app fires, and what the ledger expects by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from celery.schedules import crontab, schedule

#: Seconds between two bursts, and how many schedules are due together in one.
BURST_EVERY: Final = 10.0
BURST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One schedule. Durations are seconds."""

    name: str
    task: Literal["tick", "plain", "own", "slow"] = "tick"
    period: float | None = 1.0
    """``None``: each full minute, by a crontab."""

    relative: bool = False
    missed_run: Literal["run_once", "skip", "run_all"] = "run_once"
    grace: float = 30.0
    max_catchup: int = 100
    jitter: float = 0.0
    overlap: Literal["allow", "skip", "buffer_one"] = "allow"

    @property
    def allowed(self) -> frozenset[str]:
        """Why a slot may not have run under its own name."""
        missed = {"run_once": "coalesced", "skip": "skipped", "run_all": "beyond_max_catchup"}[self.missed_run]
        return frozenset({missed} if self.overlap == "allow" else {missed, "overlapped"})

    def configured(self) -> dict[str, Any]:
        """As ``beat_schedule`` takes it."""
        when: Any = crontab() if self.period is None else schedule(self.period, relative=self.relative)
        return {
            "task": f"proj.{self.task}",
            "schedule": when,
            "missed_run": self.missed_run,
            "grace": self.grace,
            "max_catchup": self.max_catchup,
            "jitter": self.jitter,
            "overlap": self.overlap,
        }

    def slots(self, anchor_ms: int, after_ms: int, upto_ms: int) -> range:
        """The slots in (after, upto], by arithmetic, in milliseconds."""
        period = 60_000 if self.period is None else round(self.period * 1000)
        origin = 0 if self.period is None else anchor_ms
        first = max(after_ms, anchor_ms) + 1
        return range(first + (origin - first) % period, upto_ms + 1, period)


def entries() -> Iterator[Entry]:
    """All of them."""
    for number in range(4):
        yield Entry(name=f"steady-{number}")
    yield Entry(name="half", period=0.5)
    for number in range(2):
        yield Entry(name=f"plain-{number}", task="plain")
        yield Entry(name=f"minute-{number}", period=None)
        yield Entry(name=f"jittered-{number}", period=2.0, jitter=1.5)
    yield Entry(name="own", task="own")
    yield Entry(name="latest", grace=2.0)
    yield Entry(name="none", missed_run="skip", grace=2.0)
    yield Entry(name="each", missed_run="run_all", grace=2.0, max_catchup=50)
    yield Entry(name="lapping", task="slow", overlap="skip")
    yield Entry(name="queueing", task="slow", overlap="buffer_one")
    for number in range(BURST):
        # Half of them leave in a few script calls, half one by one: their task has its own apply_async.
        task: Literal["tick", "own"] = "tick" if number < BURST // 2 else "own"
        yield Entry(name=f"burst-{number:03}", task=task, period=BURST_EVERY, relative=True)


ENTRIES: Final = {entry.name: entry for entry in entries()}
