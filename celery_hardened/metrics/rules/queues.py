"""Alerts on queues: does what is sent get done, and in time? Pure.

Several processes may tell of one queue (the exporter, and each worker or beat that was asked to); they tell the same,
so the largest is taken, never the sum.
"""

from __future__ import annotations

from typing import Final

from celery_hardened.metrics.catalogue import (
    QUEUE_CONSUMERS,
    QUEUE_OLDEST,
    QUEUE_SCRAPED,
    QUEUE_WAITING,
    TASKS,
    WORKER_CONSUMING,
)
from celery_hardened.metrics.outcome import FINAL, MEANING
from celery_hardened.metrics.rules.rule import Group, Rule, indented
from celery_hardened.metrics.rules.terms import Terms, quoted

#: Work that is over. A message that is tried again, or waits, is no progress.
ENDED: Final = 'outcome!~"' + "|".join(sorted(set(MEANING) - FINAL)) + '"'

_TEN: Final = 600.0


def queue_rules(terms: Terms) -> Group:
    """Waiting, ages, consumers; and whether anybody looks."""
    t, limits = terms, terms.thresholds
    queue, scraped = t.labels("queue"), f"{t.series(QUEUE_SCRAPED)}[{t.time(3600)}]"
    waiting = f"max by {queue} ({t.series(QUEUE_WAITING)})"
    consuming = f"max by {queue} ({t.series(WORKER_CONSUMING)})"
    consumers = f"max by {queue} ({t.series(QUEUE_CONSUMERS)})"
    ended = f"sum by {queue} (\n{indented(t.risen(TASKS, ENDED, limits.stalled))}\n)"
    rate = f"sum by {queue} (rate({t.series(TASKS, ENDED)}[{t.time(_TEN)}]))"
    rules = [
        Rule(
            "CeleryQueueStalled",
            "critical",
            f"{waiting} > 0\nunless on {queue}\n{ended} > 0",
            limits.stalled / 2,
            "Queue {{ $labels.queue }}: for "
            + t.time(limits.stalled)
            + ' nothing has ended; messages that wait: {{ $value | printf "%.0f" }}',
            "Workers are gone, hang, or let every message wait. Look at CeleryQueueNoConsumer and CeleryTaskStuck, and "
            "at the outcomes `waited` and `requeue` of this queue. If workers run and take nothing, restart one and "
            "keep its log; if none is left, `hardened recover` puts back what they held.",
        ),
        Rule(
            "CeleryQueueNoConsumer",
            "critical",
            f"{waiting} > 0\nunless on {queue} {consuming} > 0\nunless on {queue} {consumers} > 0",
            300,
            'Queue {{ $labels.queue }}: no worker takes from it; messages that wait: {{ $value | printf "%.0f" }}',
            "Start workers with `-Q {{ $labels.queue }}`. If they run: are they scraped (`hardened_http`), and under "
            "the same labels as what tells of the queues? If nobody should send there, look for a misspelt route.",
        ),
        Rule(
            "CeleryQueueOldestMessage",
            "warning",
            f"max by {queue} ({t.series(QUEUE_OLDEST)}) > {limits.oldest_age:g}",
            120,
            "Queue {{ $labels.queue }}: its oldest message has waited {{ $value | humanizeDuration }}",
            "Either there is more work than workers, or something holds them: see the drain time and the longest "
            "running task. Add workers if they are all busy; if they are idle, see CeleryQueueStalled.",
        ),
        Rule(
            "CeleryQueueDrainTime",
            "warning",
            f"{waiting}\n/ ({rate} > 0)\n> {limits.drain:g}\n"
            f"and on {queue} {waiting} >= {limits.min_volume}\n"
            f"and on {queue} {waiting} > max by {queue} ({t.series(QUEUE_WAITING)} offset {t.time(_TEN)})",
            600,
            "Queue {{ $labels.queue }} grows, and at its present rate takes {{ $value | humanizeDuration }} to drain",
            "More comes in than is done. Add workers, or find out who sends so much: the panel of producers tells by "
            "task. Work that has lost its use can be given `expires`.",
        ),
        Rule(
            "CeleryQueueMetricsStale",
            "warning",
            f"time() - max by {t.labels('store')} (last_over_time({scraped})) > {limits.stale:g}\n"
            f"or absent_over_time({scraped})",
            120,
            "Nobody knows how the queues are: {{ with $labels.store }}{{ . }} has not answered "
            "for {{ $value | humanizeDuration }}{{ else }}no exporter is scraped{{ end }}",
            "Alerts on queues, dead letters and the leader are blind. Is `hardened exporter` up and scraped, and does "
            "it reach the broker and Redis? Its log says what they answered.",
        ),
    ]
    if terms.queues:
        named = [f'queue="{quoted(name)}"' for name in terms.queues]
        rules.append(
            Rule(
                "CeleryQueueNotMeasured",
                "warning",
                "(\n"
                + indented("\nor ".join(f"absent({t.series(QUEUE_WAITING, matcher)})" for matcher in named))
                + f"\n)\nand on () count({t.series(QUEUE_SCRAPED)}) > 0",
                600,
                "Queue {{ $labels.queue }} is this app's, and nobody measures it",
                "The exporter runs with other queues than the app has: start it again from the app of today. If the "
                "queue is gone, print these rules anew.",
            )
        )
    return Group("queues", tuple(rules))
