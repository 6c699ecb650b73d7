"""Two sides measured by turns in one run, and compared pair by pair.

A machine that others use is never the same for two minutes: only what ran side
by side may be divided, and the spread of the pairs says what the quotient is worth.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Ratio:
    """Quotients of interleaved pairs."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, upper: Sequence[float], lower: Sequence[float]) -> Ratio:
        """*upper* over *lower*; what stands at the same place was measured in the same round."""
        quotients = sorted(u / v for u, v in zip(upper, lower, strict=True))
        return cls(statistics.median(quotients), quotients[0], quotients[-1])

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.lowest:.3f}-{self.highest:.3f})"


def turns(sides: Sequence[str], rounds: int) -> Iterator[str]:
    """Each side once a round. Whoever goes first meets a colder machine, so they take turns at that too."""
    for number in range(rounds):
        yield from sides if number % 2 == 0 else reversed(sides)


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and of all living processes below it."""
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        used = process.cpu_times()
        total += used.user + used.system
    return total
