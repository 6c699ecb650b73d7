"""Poison: when is a message that kills its worker started again, and how?

A *death* is a start whose process died. Three kinds are told apart:

- the parent saw its child die: certain, and this message did it;
- a message came back and nobody said they returned it: presumed, once;
- a start was written down and never closed: its whole worker died, and the
  message may be the culprit or an innocent that ran beside it.

Certain deaths alone make a message poison. With the others in the count it is
run alone in its worker once more: the culprit dies again and is convicted,
a bystander finishes and is cleared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of one piece of work."""

    certain: int = 0
    """Deaths its worker's parent saw."""

    presumed: int = 0
    """1 if it once came back without explanation."""

    unclosed: int = 0
    """Recorded starts that never ended."""

    alone: bool = False
    """One of the unclosed starts had the worker to itself."""

    @property
    def deaths(self) -> int:
        return self.certain + self.presumed + self.unclosed


Verdict: TypeAlias = Literal["run", "alone", "poison"]


def judge(record: Record, *, limit: int) -> Verdict:
    """Decide about the next start of a message with this *record*.

    ``poison`` needs *limit* certain deaths, or a death while it ran alone.
    *limit* deaths of any other mixture call for an ``alone`` run.
    """
    if record.certain >= limit or record.alone:
        return "poison"
    return "alone" if record.deaths >= limit else "run"


def death_delay(deaths: int, *, base: float, longest: float) -> float:
    """Seconds to wait after the *deaths*-th death: doubling from *base*, so a killer is no hot loop."""
    return float(min(longest, base * 2.0 ** min(max(deaths - 1, 0), 30)))


def is_suspect(*, redelivered: bool, deaths: int, early_ack: bool) -> bool:
    """Must this delivery's start be written down?

    A first delivery is not, so it costs no round trip. A task that acks before it
    runs never comes back after a start, so a redelivery of it proves nothing.
    """
    return not early_ack and (redelivered or deaths > 0)
