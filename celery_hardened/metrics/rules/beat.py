"""Alerts on beat: does somebody lead, and is every slot fired? Pure."""

from __future__ import annotations

from typing import Final

from celery_hardened.metrics.catalogue import (
    BEAT_LEADER,
    BEAT_PROBLEMS,
    BEAT_SLOTS,
    BEAT_TICK,
    LEADER_KNOWN,
    LEADER_TICK,
)
from celery_hardened.metrics.rules.rule import Group, Rule, indented
from celery_hardened.metrics.rules.terms import Terms

#: What a slot may become that is somebody's wish: it was fired, or somebody said that it should not be.
WANTED: Final = ("fired", "paused", "skipped_by_hand", "superseded", "overlapped")

_HOUR: Final = 3600.0
_OVER: Final = ("last_over_time", "absent_over_time")


def beat_rules(terms: Terms) -> Group:
    """Signs of life, the leader, slots, and schedules that cannot be used."""
    t, limits = terms, terms.thresholds
    missed = 'outcome!~"' + "|".join(WANTED) + '"'
    hour = t.time(_HOUR)
    # Also when it is gone, and its series with it: then by the last that was seen, or by what Redis keeps.
    ticks = [f"{over}({t.series(family)}[{hour}])" for over in _OVER for family in (BEAT_TICK, LEADER_TICK)]
    never = f"\nor ({ticks[2]} and {ticks[3]})" if terms.beat else ""
    rules = (
        Rule(
            "CeleryBeatSilent",
            "critical",
            f"time() - max by {t.labels()} (\n  {ticks[0]}\n  or {ticks[1]}\n) > {limits.beat_silent:g}{never}",
            60,
            "No beat has given a sign of life{{ if gt $value 1.0 }} for {{ $value | humanizeDuration }}{{ end }}: "
            "no schedule fires",
            "Start `celery -A PROJ beat -S hardened`, or `-S hardened-django` for schedules in Django's tables; two of "
            "them, so that one takes over. What was missed meanwhile is fired by each schedule's policy when one leads "
            "again.",
        ),
        Rule(
            "CeleryBeatNoLeader",
            "critical",
            # Of an app whose beats never led, Redis says nothing.
            f"max by {t.labels()} ({t.series(BEAT_LEADER)} or {t.series(LEADER_KNOWN)}) == 0",
            60,
            "No beat leads: no schedule fires",
            "`hardened leader` tells who led last, and how that ended. Beats that run and do not lead cannot reach "
            "Redis, or their clocks are wrong; their logs say so.",
        ),
        Rule(
            "CeleryBeatRunsMissed",
            "warning",
            f"sum by {t.labels('schedule', 'outcome')} (\n{indented(t.risen(BEAT_SLOTS, missed, _HOUR))}\n) > 0",
            0,
            '{{ $labels.schedule }}: slots that were not fired ({{ $labels.outcome }}): {{ $value | printf "%.0f" }}',
            "`hardened schedule history {{ $labels.schedule }}` tells which, and why. If the work is still wanted: "
            "`hardened schedule backfill {{ $labels.schedule }} --from … --to … --dry-run`, and then without it.",
        ),
        Rule(
            "CeleryBeatRunsOverlap",
            "info",
            f"sum by {t.labels('schedule')} (\n"
            + indented(t.risen(BEAT_SLOTS, 'outcome="overlapped"', _HOUR))
            + "\n) >= 3",
            0,
            '{{ $labels.schedule }}: slots that found the run before them not done: {{ $value | printf "%.0f" }}',
            "Its runs take longer than its interval, or wait in their queue. Make the interval longer, or the queue "
            "faster; `hardened schedule history {{ $labels.schedule }}` shows the runs.",
        ),
        Rule(
            "CeleryBeatScheduleUnusable",
            "warning",
            f"max by {t.labels()} ({t.series(BEAT_PROBLEMS)}) > 0",
            60,
            'Schedules that cannot be used, and do not fire: {{ $value | printf "%.0f" }}',
            "`hardened schedule list` names them and says what is wrong with each.",
        ),
    )
    return Group("beat", rules)
