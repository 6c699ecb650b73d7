"""What is known at one moment, of everything that the page tells. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from celery_hardened.attendance.record import Lost, Present
from celery_hardened.beat.leader_store import LeaderRecord
from celery_hardened.metrics.queue_reading import BrokerReading

#: In ``Letters.recently``: all queues but the largest, as one number.
OTHERS: Final = "other queues"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """What the broker says."""

    kind: str
    """``redis``, or the name of another transport."""

    reading: BrokerReading
    names: tuple[str, ...] = ()
    """All that were asked for."""

    waiting_for: Mapping[str, float] = field(default_factory=dict)
    """By queue: seconds since which this process has seen messages wait in it, whenever it looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What workers say in Redis."""

    present: tuple[Present, ...] = ()
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True)
class Missed:
    """Slots of one schedule that no beat could fire in time, made up for or not."""

    schedule: str
    recently: int
    """In the last hour."""

    ago: float
    """Since the last of them was passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beats:
    """What Redis has of beats and schedules."""

    leader: LeaderRecord
    records: int = 0
    """Schedules that a beat has seen."""

    unusable: int = 0
    """Of these, that cannot be used."""

    missed: tuple[Missed, ...] = ()
    """The latest first."""

    missed_ever: int = 0
    """Of all schedules that were looked at, since each began."""

    partial: bool = False
    """There are more schedules than were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """What the store of dead letters says."""

    open: int = 0
    oldest: float | None = None
    """Seconds that the oldest open one has lain there."""

    by_queue: Mapping[str, int] = field(default_factory=dict)
    recently: Mapping[str, int] = field(default_factory=dict)
    """By queue: of these, stored in the last 15 minutes; queues without are left out."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Somebody who did not answer."""

    why: str
    since: float
    """Seconds since the last answer, or since the first question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it. ``None``: nobody knows, or there is no such thing; ``silent`` tells which."""

    queues: Queues | None = None
    workers: Workers | None = None
    """``None`` also where workers say nothing: a dry run, or an app without Redis."""

    beats: Beats | None = None
    letters: Letters | None = None
    schedules: int | None = None
    """Enabled ones, in the tables and in the app's configuration."""

    silent: Mapping[str, Silence] = field(default_factory=dict)
    """By who was asked: ``the broker``, ``Redis``, ``the store of dead letters``, ``the database``."""
