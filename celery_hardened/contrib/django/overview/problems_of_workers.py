"""What is wrong with workers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from celery_hardened.attendance.record import Present, WorkerRecord
from celery_hardened.contrib.django.overview.facts import Facts
from celery_hardened.contrib.django.overview.problems import Limits, Problem, of_rule
from celery_hardened.metrics.rules.worded import span
from celery_hardened.metrics.rules.workers import WINDOW


def worker_problems(facts: Facts, limits: Limits) -> Iterator[Problem]:
    """Workers that hang, that stopped consuming, that are gone; and leases that were lost."""
    if facts.workers is None:
        return
    for one in current(facts.workers.present):
        yield from _of(one, limits)
    lost = [one for one in facts.workers.lost if one.ago <= WINDOW]
    for queue, number in Counter(one.queue for one in lost).most_common():
        of = [one for one in lost if one.queue == queue]
        where = ", ".join(sorted({f"{one.task or 'a task'} on {one.worker}" for one in of})[:3])
        yield of_rule(
            limits.worded("CeleryLeasesLost", {"queue": queue}, number),
            key=queue,
            extent=f"{where}, the latest {span(of[0].ago)} ago",
        )


def current(present: Sequence[Present]) -> list[Present]:
    """Without the runs that a later one of the same node has taken the place of, by name."""
    found: dict[str, Present] = {}
    kept = []
    for one in sorted(present, key=lambda one: one.silent):
        newer = found.setdefault(one.record.name, one)
        # Two that speak at the same time have one name by mistake: both are shown.
        if newer is one or one.silent < newer.record.began:
            kept.append(one)
    return sorted(kept, key=lambda one: one.record.name)


def _of(one: Present, limits: Limits) -> Iterator[Problem]:
    record, pauses = one.record, limits.pauses
    if one.silent >= pauses.silent:
        if one.silent <= WINDOW:
            yield Problem(
                key=f"gone:{record.name}:{record.pid}",
                severity="warning",
                what=f"{record.name} has said nothing for {span(one.silent)}, and did not say that it ends",
                do="It was killed, its host is gone or frozen, or it cannot reach Redis. What it held starts elsewhere "
                "within `hardened_lease`, on RabbitMQ when its connection is closed. If its process is still there, "
                "look at its log, and restart it.",
                extent=_took_from(record),
            )
        return
    turned = record.turned + one.silent
    if record.stopping:
        return  # it takes nothing new on purpose, and ends when its tasks have ended
    if record.tried is None and turned > limits.terms.thresholds.stale:
        yield of_rule(
            limits.worded("CeleryWorkerHangs", {"instance": record.name}, turned),
            key=f"{record.name}:{record.pid}",
            extent=_took_from(record),
        )
    elif record.missing and record.deaf >= pauses.not_consuming:
        yield _deaf(record, ", ".join(record.missing), f"for {span(record.deaf)}", limits)
    elif record.tried is not None and turned >= pauses.not_consuming:
        yield _deaf(record, "any", f"it has had no connection to its broker for {span(turned)}", limits)


def _deaf(record: WorkerRecord, queue: str, extent: str, limits: Limits) -> Problem:
    said = limits.worded("CeleryWorkerNotConsuming", {"instance": record.name, "queue": queue})
    return of_rule(said, key=f"{record.name}:{record.pid}", extent=extent)


def _took_from(record: WorkerRecord) -> str:
    return f"it took from {', '.join(record.queues)}" if record.queues else ""
