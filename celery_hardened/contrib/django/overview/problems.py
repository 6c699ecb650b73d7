"""What is wrong, and what to do about it. Pure: facts in, problems out, the worst first.

They are the alerts' problems, in the alerts' words and by the alerts' thresholds (``metrics/rules``). Only the pause
before an alert wakes somebody is shorter here (``Pauses``): a page wakes nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from celery_hardened.contrib.django.overview.facts import OTHERS, Facts
from celery_hardened.metrics.rules.rule import Severity
from celery_hardened.metrics.rules.terms import Terms
from celery_hardened.metrics.rules.worded import Worded, span, worded

#: Where the page can lead to.
Place: TypeAlias = Literal["letters", "schedules"]

_RANK: Final[Mapping[Severity, int]] = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Seconds for which something has to be so before it is called a problem: longer than a restart takes."""

    no_leader: float = 15.0
    no_consumer: float = 60.0
    not_consuming: float = 20.0
    silent: float = 30.0
    """A worker speaks every five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From when on something is a problem.

    Args:
        terms: Of the alerts: their thresholds, and the name of the app in commands.
    """

    terms: Terms = field(default_factory=Terms)
    pauses: Pauses = field(default_factory=Pauses)

    def worded(self, name: str, labels: Mapping[str, str] | None = None, value: float = 0.0) -> Worded:
        return worded(name, self.terms, labels, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One."""

    key: str
    """The same as long as it is the same problem, though its numbers change."""

    severity: Severity
    what: str
    do: str
    """Commands stand in backticks."""

    extent: str = ""
    """Since when, or how much, if ``what`` does not say it."""

    place: Place | None = None
    subject: Mapping[str, str] = field(default_factory=dict)
    """What to look for at that place, as its filters have it."""

    alert: str = ""
    """Name of the alert that tells the same; empty: there is none."""


def of_rule(
    said: Worded,
    *,
    key: str = "",
    extent: str = "",
    place: Place | None = None,
    subject: Mapping[str, str] | None = None,
) -> Problem:
    """The problem that the alert of *said* tells of."""
    return Problem(
        key=f"{said.name}:{key}",
        severity=said.severity,
        what=said.summary,
        do=said.do,
        extent=extent,
        place=place,
        subject=subject or {},
        alert=said.name,
    )


def problems(facts: Facts, limits: Limits = Limits()) -> Sequence[Problem]:
    """What is wrong."""
    from celery_hardened.contrib.django.overview.problems_of_beats import beat_problems
    from celery_hardened.contrib.django.overview.problems_of_queues import queue_problems
    from celery_hardened.contrib.django.overview.problems_of_workers import worker_problems

    parts: Sequence[Callable[[Facts, Limits], Iterator[Problem]]] = (
        _silence,
        beat_problems,
        queue_problems,
        worker_problems,
        _letters,
    )
    found = [problem for part in parts for problem in part(facts, limits)]
    return sorted(found, key=lambda one: _RANK[one.severity])  # stable: else in the order above


def _silence(facts: Facts, _: Limits) -> Iterator[Problem]:
    for who, silence in facts.silent.items():
        yield Problem(
            key=f"silent:{who}",
            severity="critical",
            what=f"{who[:1].upper()}{who[1:]} does not answer: {silence.why}",
            do="What this page shows of it is old, or missing. Is it up, and does this web server reach it? Workers "
            "and beats that cannot reach it wait for it as well, and go on by themselves when it is back.",
            extent=f"for {span(silence.since)}" if silence.since >= 1 else "",
        )


def _letters(facts: Facts, limits: Limits) -> Iterator[Problem]:
    letters = facts.letters
    if letters is None:
        return
    for queue, number in sorted(letters.recently.items(), key=lambda pair: -pair[1]):
        if number > 0:
            said = limits.worded("CeleryDeadLettersGrowing", {"queue": queue or "(none)"}, number)
            yield of_rule(said, key=queue, place="letters", subject=_filter(queue))
    if letters.oldest is not None and letters.oldest > limits.terms.thresholds.letter_age:
        yield of_rule(limits.worded("CeleryDeadLettersForgotten", value=letters.oldest), place="letters")


def _filter(queue: str) -> Mapping[str, str]:
    """What the list of dead letters is to be filtered by."""
    if queue == OTHERS:
        return {}
    return {"queue": queue} if queue else {"none": "queue"}
