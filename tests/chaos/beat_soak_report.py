"""What a soak of beats found, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.beat_soak_ledger import Account

_SHOWN = 15


@dataclass(slots=True, kw_only=True)
class Report:
    """The figures. ``clean``: nothing was lost, fired twice or passed against a policy, and nothing has stalled."""

    broker: str
    server: str
    seed: int
    minutes: float
    ttl: float
    beats: int
    faults: Mapping[str, int]
    undone: int
    """Faults that found nobody to be done to in time."""
    in_bursts: Sequence[str]
    account: Account
    stalled: Sequence[str]
    exits: Sequence[str]
    loads: Sequence[str]
    wall: float

    @property
    def clean(self) -> bool:
        found = self.account
        return not (
            found.lost or found.doubled or found.unlawful or found.wrong or self.stalled or self.ran_twice or self.exits
        )

    @property
    def ran_twice(self) -> list[str]:
        """Bodies that ran twice, which is a promise on RabbitMQ, where each slot has its key. A Redis that was
        restarted gives a message out again whose ack it had not: that is counted, and promised of no task
        without a key."""
        return self.account.ran_twice if self.broker == "rabbitmq" else []

    def lines(self) -> list[str]:
        """The report in words."""
        found = self.account
        late = sorted(found.late)
        shown = " ".join(f"p{part * 100:g} {_part(late, part):.2f}" for part in (0.5, 0.99, 1.0))
        return [
            f"{self.broker}, records on {self.server}, {self.beats} beats, ttl {self.ttl:g} s, {self.minutes:g} min, "
            f"seed {self.seed}; {self.wall:.0f} s in all",
            f"faults       {sum(self.faults.values())}: {_counts(self.faults)}; {self.undone} not done",
            f"in bursts    {len(self.in_bursts)} stops, when so many of the burst had moved on: "
            f"{', '.join(sorted(self.in_bursts))}",
            f"slots        {found.slots} by arithmetic: {found.fired} fired, passed {_counts(found.passed)}, "
            f"{found.pending} waiting at the end; {len(found.terms)} terms",
            f"late         {shown} s after their slot",
            *_told("lost", found.lost),
            *_told("fired twice", found.doubled),
            *_told("unlawful", found.unlawful),
            *_told("wrong", found.wrong),
            *_told("ran twice", found.ran_twice),
            f"             {found.contained_twice} runs of contained tasks beyond the first; "
            f"{found.redelivered} starts of a message that the broker gave out again; "
            f"{found.twins} messages beyond the first of a slot",
            *_told("stalled", self.stalled),
            *_told("exits", self.exits),
            f"load         {', '.join(self.loads)}",
            "CLEAN" if self.clean else "NOT CLEAN",
        ]


def _part(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def _told(what: str, found: Sequence[str]) -> list[str]:
    more = [f"             … and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return [f"{what:12} {len(found)}", *(f"             {one}" for one in found[:_SHOWN]), *more]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"
