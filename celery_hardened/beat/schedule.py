"""One schedule, as a beat knows it, wherever it is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from celery_hardened.beat.policy import Policy
from celery_hardened.beat.slots import Slots


class When(Protocol):
    """The timing of a schedule, before it is hung on an anchor."""

    @property
    def mark(self) -> str:
        """Short text that changes when the timing does, and never otherwise (other process, other release)."""

    def slots(self, anchor: float) -> Slots:
        """The slots, counted from *anchor* where they are intervals. Cheap: called at each decision."""

    def anchored(self, instant: float) -> float:
        """The anchor of a schedule that starts at *instant*: the same, or rounded down (``relative=True``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is fired, when, and by which policy. Instants are seconds since the epoch."""

    name: str
    """Its identity: slots, records and task ids hang on it."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of ``apply_async``."""

    when: When
    policy: Policy = field(default_factory=Policy)

    start: float = -math.inf
    """No slot before."""

    end: float = math.inf
    """No slot from here on."""

    one_off: bool = False
    """It is over after its first fire."""

    not_before: float | None = None
    """A new or edited schedule starts from here, if that is known; ``None``: from when it is first seen."""

    last_run: float | None = None
    """When another scheduler fired it last: where a schedule without a record goes on from."""

    row: int | None = None
    """Primary key, of a schedule in a database."""

    @property
    def mark(self) -> str:
        """Changes when the slots do: then the schedule starts afresh."""
        return _mark(self.when.mark, self.start, self.end, self.one_off)

    @property
    def is_unbounded(self) -> bool:
        """Has it neither a start nor an end?"""
        return self.start == -math.inf and self.end == math.inf


@lru_cache(maxsize=4096)  # many schedules share one, and each decision asks
def _mark(when: str, start: float, end: float, one_off: bool) -> str:
    return f"{when}|{start:.3f}|{end:.3f}|{int(one_off)}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A schedule that cannot be used, and why. The others go on."""

    name: str
    text: str
    """What is wrong, and what to do; never an argument's value."""
