"""What is wrong with queues. Pure.

One queue is one problem, the one that explains the others: nobody takes from it, else nothing ends, else it is slow.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_hardened.contrib.django.overview.facts import Facts, Queues, Workers
from celery_hardened.contrib.django.overview.problems import Limits, Problem, of_rule
from celery_hardened.metrics.queue_reading import QueueReading
from celery_hardened.metrics.rules.worded import span


def queue_problems(facts: Facts, limits: Limits) -> Iterator[Problem]:
    """Of each queue, at most one."""
    if facts.queues is None:
        return
    for name, reading in facts.queues.reading.queues.items():
        if reading.waiting:
            yield from _of(name, reading, facts.queues, facts.workers, limits)


def _of(name: str, reading: QueueReading, queues: Queues, workers: Workers | None, limits: Limits) -> Iterator[Problem]:
    known = limits.terms.thresholds
    # A broker that does not tell the age: for so long it was never seen empty.
    age = reading.oldest if reading.oldest is not None else queues.waiting_for.get(name, 0.0)
    extent = f"the oldest for {span(age)}" if reading.oldest is not None else f"seen for {span(age)}"
    takers = taken_by(name, reading, workers, limits)
    if takers == 0:
        if age >= limits.pauses.no_consumer:
            said = limits.worded("CeleryQueueNoConsumer", {"queue": name}, reading.waiting)
            yield of_rule(said, key=name, extent=extent)
    elif age >= known.stalled and _stalled(name, workers, limits):
        said = limits.worded("CeleryQueueStalled", {"queue": name}, reading.waiting)
        yield of_rule(said, key=name, extent=extent)
    elif reading.oldest is not None and age > known.oldest_age:
        yield of_rule(
            limits.worded("CeleryQueueOldestMessage", {"queue": name}, age), key=name, extent=f"{reading.waiting} wait"
        )


def taken_by(name: str, reading: QueueReading, workers: Workers | None, limits: Limits) -> int | None:
    """How many workers take from the queue; ``None``: nobody knows.

    The broker's own word counts, where it gives one. Else a worker that speaks and takes from it, or one that is
    too busy to be asked: then it says so itself.
    """
    if reading.consumers is not None:
        return reading.consumers
    if workers is None:
        return None
    return sum(1 for one in workers.present if one.silent < limits.pauses.silent and name in one.record.queues)


def _stalled(name: str, workers: Workers | None, limits: Limits) -> bool:
    """Has no work of this queue ended for so long, as far as those tell who take from it?

    One that does not count, or that began later than that, leaves it open.
    """
    if workers is None:
        return False
    limit = limits.terms.thresholds.stalled
    takers = [one for one in workers.present if one.silent < limits.pauses.silent and name in one.record.queues]
    if not takers or not all(one.record.counts for one in takers):
        return False
    if max(one.record.began for one in takers) < limit:
        return False
    ended = [one.record.ended[name] + one.silent for one in workers.present if name in one.record.ended]
    return not ended or min(ended) >= limit
