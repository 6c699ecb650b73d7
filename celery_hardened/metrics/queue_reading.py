"""What a broker says of its queues at one moment, whichever broker it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

#: Seconds that the last numbers are shown while a store is away, or three readings if that is longer.
KEEP: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    """One queue."""

    waiting: int
    """Messages that no worker has taken."""

    oldest: float | None = None
    """Seconds that the oldest of them has waited, 0 in an empty queue. ``None``: it cannot be told."""

    consumers: int | None = None
    """``None``: the broker does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReading:
    """All queues that were asked for. One that could not be read is not among them."""

    queues: Mapping[str, QueueReading] = field(default_factory=dict)

    exists: Mapping[str, bool] = field(default_factory=dict)
    """Whether the broker has the queue, where it tells. In Redis an empty queue does not exist."""

    dead_letter_queues: Mapping[str, int] = field(default_factory=dict)
    """By queue: messages in its dead letter queue."""

    delayed: int | None = None
    """Messages that wait in the broker for their time, those of all queues. ``None``: it cannot be told."""

    unacked: int | None = None
    """Messages that workers hold, those of all queues. ``None``: it cannot be told."""


class QueueSource(Protocol):
    """Reads a broker. Used by one thread."""

    def read(self, queues: Sequence[str]) -> BrokerReading:
        """Ask for *queues*, within seconds. Raises ``StoreUnavailableError``; the next call connects again."""

    def close(self) -> None:
        """Let go of what it holds. Never raises."""


def waited(*, published: float | None, eta: str, now: float) -> float | None:
    """Seconds that a message in a queue has waited at *now*; ``None`` if it does not say when it was published.

    What was delayed waits since it was due. What is not due yet waits as well, for a worker that puts it aside:
    where workers run, that takes a moment.
    """
    if published is None:
        return None
    due = _seconds(eta)
    since = published if due is None or due > now else max(published, due)
    return max(0.0, now - since)


def _seconds(eta: str) -> float | None:
    if not eta:
        return None
    try:
        at = datetime.fromisoformat(eta.replace("Z", "+00:00"))
        return at.timestamp() if at.tzinfo else None  # local time of an app without UTC: only that app knows which
    except (ValueError, OverflowError, OSError):
        return None
