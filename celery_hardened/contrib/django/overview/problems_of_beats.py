"""What is wrong with beats and schedules. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from celery_hardened.beat.leader_words import named
from celery_hardened.contrib.django.overview.facts import Beats, Facts
from celery_hardened.contrib.django.overview.problems import Limits, Problem, of_rule
from celery_hardened.metrics.rules.worded import span

#: Schedules with missed runs that are told one by one.
_MOST = 10


def beat_problems(facts: Facts, limits: Limits) -> Iterator[Problem]:
    """No leader, a leader that stands still, missed runs, schedules that cannot be used."""
    beats = facts.beats
    if beats is None:
        return
    yield from _leader(beats, facts.schedules, limits)
    for missed in beats.missed[:_MOST]:
        if missed.recently:
            labels = {"schedule": missed.schedule, "outcome": "missed"}
            yield of_rule(
                limits.worded("CeleryBeatRunsMissed", labels, missed.recently),
                key=missed.schedule,
                extent=f"in the last hour, the latest {span(missed.ago)} ago",
                place="schedules",
                subject={"q": missed.schedule},
            )
    if beats.unusable:
        yield of_rule(limits.worded("CeleryBeatScheduleUnusable", value=beats.unusable), place="schedules")


def _leader(beats: Beats, schedules: int | None, limits: Limits) -> Iterator[Problem]:
    leader = beats.leader
    if schedules == 0:
        return  # nothing is to be fired, and nobody has to
    if not leader.term:
        if schedules:
            yield Problem(
                key="no beat yet",
                severity="warning",
                what=f"{schedules} schedules are enabled, and no beat of this package has ever led",
                do=limits.worded("CeleryBeatSilent").do
                + " If another scheduler fires them, nothing is wrong: this page does not see it.",
                place="schedules",
            )
    elif not leader.leads:
        # The last leader's clock is what it said at its last renewal. A beat that restarts is back in seconds.
        gone = None if leader.clock is None else max(0.0, leader.server - leader.clock)
        if gone is None or gone >= limits.pauses.no_leader:
            last = named(leader.identity)
            since = "" if gone is None else f" for about {span(gone)}"
            yield of_rule(
                limits.worded("CeleryBeatNoLeader"),
                extent=f"nobody has led{since}" + (f"; the last was {last}" if last else ""),
                place="schedules",
            )
    elif leader.tick is not None and leader.server - leader.tick > limits.terms.thresholds.beat_silent:
        silent = leader.server - leader.tick
        yield of_rule(
            limits.worded("CeleryBeatSilent", value=silent),
            extent=f"{named(leader.identity) or 'a beat'} leads, and its main loop stands still",
            place="schedules",
        )
