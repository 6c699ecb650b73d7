"""Facts of a process in, verdicts with a sentence out. Pure.

::

    live      a restart would not help: its loop turns, or it tries to connect, or it does what holds it up
    ready     it does its work now
    started   it was ready once

*Live* never depends on the broker: one that is away would have every worker restarted, and all of them come back at
one moment when it returns.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

#: Seconds without a consumer, or without a turn of its loop, that a worker is still ready.
UNREADY: Final = 15.0

#: Seconds without a consumer after which a worker that nobody told to stop consuming is dead.
DEAF_DEAD: Final = 120.0

#: Seconds a beat may take for one turn, at least; and turns, at least.
BEAT_STALL: Final = 120.0
BEAT_TURNS: Final = 3

#: Seconds after which an exporter that got no answer from its broker is not ready, at least; and readings, at least.
UNANSWERED: Final = 60.0
EXPORTER_READINGS: Final = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What one probe says."""

    good: bool
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the three probes of a process say."""

    live: Answer
    ready: Answer
    started: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Of a worker. Durations in seconds."""

    pool: str
    started: bool
    """It was ready once."""

    stopping: bool
    """It was told to end."""

    turned: float
    """Since its main loop last turned; before the first turn: since it was made."""

    tried: float | None
    """Since its last try to connect, while it is connecting."""

    working: bool
    """The loop is held up by a task that is within its time limit, or has none (solo pool)."""

    queues: tuple[str, ...]
    """It consumes from these."""

    missing: tuple[str, ...]
    """It should consume from these and does not."""

    cancelled: tuple[str, ...]
    """It was told at run time not to consume from these any more."""

    deaf: float
    """For so long something is missing though the loop turns."""

    stall: float
    """``hardened_health_stall``."""

    @property
    def moves(self) -> bool:
        """Does its main thread get anywhere?"""
        return self.turned < self.stall or self.working or (self.tried is not None and self.tried < self.stall)


def worker_health(of: WorkerFacts) -> Health:
    """What the probes of a worker say."""
    return Health(live=_worker_lives(of), ready=_worker_is_ready(of), started=_started(of.started))


def _worker_lives(of: WorkerFacts) -> Answer:
    if of.stopping:
        return Answer(True, "it was told to stop, and ends when its tasks have ended")
    if not of.moves:
        what = "its main loop has not turned" if of.tried is None else "its main loop has not turned, nor has it tried"
        return Answer(False, f"{what} for {min(of.turned, _or_never(of.tried)):.0f} s (limit {of.stall:g} s)")
    if of.deaf >= DEAF_DEAD and of.tried is None:
        return Answer(
            False, f"it has not consumed from {_listed(of.missing)} for {of.deaf:.0f} s (limit {DEAF_DEAD:g} s)"
        )
    if of.turned >= of.stall and of.working:
        return Answer(True, f"a task that is within its time limit has held up its loop for {of.turned:.0f} s")
    if of.tried is not None:
        return Answer(True, f"it is connecting to its broker; last try {of.tried:.0f} s ago")
    return Answer(True, "its main loop turns")


def _worker_is_ready(of: WorkerFacts) -> Answer:
    if of.stopping:
        return Answer(False, "it was told to stop and takes nothing new")
    if not of.started:
        return Answer(False, "it is starting")
    if of.tried is not None:
        return Answer(False, f"it is not connected to its broker; last try {of.tried:.0f} s ago")
    if of.turned >= min(UNREADY, of.stall) and not of.working:
        return Answer(False, f"its main loop has not turned for {of.turned:.0f} s")
    if of.cancelled:
        return Answer(False, f"it was told not to consume from {_listed(of.cancelled)} (control cancel_consumer)")
    if of.missing and of.deaf >= UNREADY:
        return Answer(False, f"it has not consumed from {_listed(of.missing)} for {of.deaf:.0f} s")
    if not of.queues and not of.missing:
        return Answer(False, "it consumes from no queue")
    return Answer(True, f"it consumes from {_listed(of.queues or of.missing)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatFacts:
    """Of a beat. Durations in seconds."""

    started: bool
    """It turned once, and Redis answered."""

    turned: float
    """Since it last turned; before the first turn: since it was made."""

    leads: bool
    answered: bool
    """Redis answered when the lead was last asked for."""

    problem: str | None
    """Why it did not."""

    longest: float
    """Longest wait of one turn: celery's ``max_interval``, or less."""

    @property
    def stall(self) -> float:
        return max(BEAT_STALL, BEAT_TURNS * self.longest)


def beat_health(of: BeatFacts) -> Health:
    """What the probes of a beat say. Leading or standing by: both are its work."""
    turns = of.turned < of.stall
    still = f"it has not turned for {of.turned:.0f} s (limit {of.stall:g} s)"
    live = Answer(True, "it turns") if turns else Answer(False, still)
    if not turns:
        ready = live
    elif not of.answered:
        ready = Answer(False, f"it cannot tell who leads: {of.problem or 'Redis does not answer'}")
    else:
        ready = Answer(True, "it leads" if of.leads else "it stands by")
    return Health(live=live, ready=ready, started=_started(of.started))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterFacts:
    """Of an exporter. Durations in seconds."""

    answered: float | None
    """Since its broker last answered; ``None``: it has not yet."""

    turned: float = 0.0
    """Since its own loop last turned, if it has one."""

    stall: float = 60.0
    """``hardened_health_stall``."""

    every: float = 0.0
    """Between two readings."""

    def patience(self, least: float) -> float:
        """*least*, or three readings if that is longer: between two of them it asks nobody."""
        return max(least, EXPORTER_READINGS * self.every)


def exporter_health(of: ExporterFacts) -> Health:
    """What the probes of an exporter say."""
    turns = of.turned < of.patience(of.stall)
    live = Answer(turns, "it answers" if turns else f"its loop has not turned for {of.turned:.0f} s")
    if of.answered is None:
        ready = Answer(False, "its broker has not answered yet")
    elif of.answered >= of.patience(UNANSWERED):
        ready = Answer(False, f"its broker has not answered for {of.answered:.0f} s")
    else:
        ready = Answer(True, f"its broker answered {of.answered:.0f} s ago")
    return Health(live=live, ready=ready, started=_started(of.answered is not None))


#: What a process is asked: by each kind its own.
Facts = WorkerFacts | BeatFacts | ExporterFacts


def health_of(facts: Facts) -> Health:
    """The verdicts on *facts*, of whatever kind."""
    if isinstance(facts, WorkerFacts):
        return worker_health(facts)
    return beat_health(facts) if isinstance(facts, BeatFacts) else exporter_health(facts)


def told(answer: Answer, facts: Facts | None) -> dict[str, object]:
    """The body of a probe: the verdict, its sentence, and every fact."""
    if facts is None:
        return {"good": answer.good, "because": answer.because}
    rounded = {
        f.name: round(value, 3) if isinstance(value := getattr(facts, f.name), float) else value for f in fields(facts)
    }
    return {"good": answer.good, "because": answer.because, "facts": rounded}


def unknown(problem: BaseException) -> Health:
    """What the probes say if the facts cannot be had. A restart would not help."""
    because = f"its state cannot be told: {problem!r}"
    return Health(live=Answer(True, because), ready=Answer(False, because), started=Answer(False, because))


def _started(started: bool) -> Answer:
    return Answer(started, "it has started" if started else "it is starting")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _or_never(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds
