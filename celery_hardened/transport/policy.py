"""When a worker may keep its leases, and when it has stopped consuming. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: Renewals in the time of one lease.
RENEWALS = 3

#: Leases without a tick of the worker's loop after which it counts as wedged.
WEDGED_LEASES = 3

#: Seconds a queue may hold messages while an idle worker receives none, before it reconnects.
STALLED = 10.0

#: Seconds after that until it gives up.
GIVE_UP = 60.0


def may_renew(*, silence: float, lease: float, working: bool) -> bool:
    """May a worker prolong what it holds?

    Not if it is wedged: its messages have to start elsewhere. A loop that does not turn
    is no sign of that alone: in the solo pool a task blocks it, as a soft shutdown does.

    Args:
        silence: Seconds since the worker's loop last turned.

        working: A task runs that is within its time limit, or has none and its process lives.
    """
    return silence < WEDGED_LEASES * lease or working


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """How one consumer's reception looks from outside."""

    idle: float
    """Seconds since anything was received, or since it could not have been."""

    waiting: int
    """Messages in its queues."""

    hungry: bool
    """It consumes and may take more."""

    busy: bool
    """A task blocks the loop that would receive (solo pool)."""


Verdict: TypeAlias = Literal["fine", "reconnect", "exit"]


def judge_reception(seen: Reception) -> Verdict:
    """A worker that is connected and receives nothing from a queue that is not empty has to reconnect,
    and if that does not help, to end: its supervisor starts a new one."""
    if not seen.hungry or seen.busy or not seen.waiting or seen.idle < STALLED:
        return "fine"
    return "exit" if seen.idle >= STALLED + GIVE_UP else "reconnect"
