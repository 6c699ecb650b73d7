"""Slots: the UTC instants that a schedule names. Pure.

An instant is a float, seconds since the epoch. A slot is one on the millisecond; sums are done in whole milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

#: Milliseconds that a float still tells apart. What lies beyond (±inf, too) is taken for this.
_FAR = 1 << 52


class Slots(Protocol):
    """When a schedule is due, for ever and without gaps: the same answer in every process."""

    def after(self, instant: float) -> float | None:
        """The first slot later than *instant*; ``None``: there is none."""

    def latest(self, instant: float) -> float | None:
        """The last slot not later than *instant*; ``None``: there is none."""

    def count(self, after: float, upto: float) -> int:
        """How many slots lie in (*after*, *upto*]."""


@dataclass(frozen=True, slots=True)
class Interval:
    """``anchor + k * period``, k ≥ 1: no drift, whatever is late. Both are taken to the millisecond."""

    anchor: float
    period: float

    def after(self, instant: float) -> float | None:
        return self._slot(max(0, self._index(instant)) + 1)

    def latest(self, instant: float) -> float | None:
        index = self._index(instant)
        return self._slot(index) if index >= 1 else None

    def count(self, after: float, upto: float) -> int:
        return max(0, max(0, self._index(upto)) - max(0, self._index(after)))

    def _index(self, instant: float) -> int:
        """Number of the last slot not later than *instant*; below 1 there is none."""
        return (_floor(instant) - round(self.anchor * 1000)) // round(self.period * 1000)

    def _slot(self, index: int) -> float:
        return (round(self.anchor * 1000) + index * round(self.period * 1000)) / 1000


@dataclass(frozen=True, slots=True)
class Once:
    """One instant and no other."""

    at: float

    def after(self, instant: float) -> float | None:
        return self.at if instant < self.at else None

    def latest(self, instant: float) -> float | None:
        return self.at if self.at <= instant else None

    def count(self, after: float, upto: float) -> int:
        return int(after < self.at <= upto)


@dataclass(frozen=True, slots=True)
class Between:
    """The slots of *slots* from *start* on (included), and before *end*."""

    slots: Slots
    start: float = -math.inf
    end: float = math.inf

    def after(self, instant: float) -> float | None:
        found = self.slots.after(instant if instant >= self.start else _before(self.start))
        return found if found is not None and found < self.end else None

    def latest(self, instant: float) -> float | None:
        found = self.slots.latest(instant if instant < self.end else _before(self.end))
        return found if found is not None and found >= self.start else None

    def count(self, after: float, upto: float) -> int:
        first = after if after >= self.start else _before(self.start)
        last = upto if upto < self.end else _before(self.end)
        return self.slots.count(first, last) if first < last else 0


def _floor(instant: float) -> int:
    """The last whole millisecond not later than *instant*."""
    if not abs(instant) < _FAR / 1000:
        return _FAR if instant > 0 else -_FAR
    ms = round(instant * 1000)
    # The product is rounded; the quotient is what slots are made by, so that is what has to be compared.
    return ms if ms / 1000 <= instant else ms - 1


def _before(instant: float) -> float:
    """The last whole millisecond earlier than *instant*."""
    ms = _floor(instant)
    return (ms if ms / 1000 < instant else ms - 1) / 1000
