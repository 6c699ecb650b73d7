"""Panels on processes: workers, beat, producers, and the numbers themselves. Pure."""

from __future__ import annotations

from typing import Final

from celery_hardened.metrics import catalogue as c
from celery_hardened.metrics.panels.panel import RATE, Panel, Query, Row, of, one_of, quantile, rate
from celery_hardened.metrics.publish_result import PUBLISH_FAILED

_LOST: Final = frozenset({"timeout", "worker_lost", "poison", "lease_lost"})

WORKER_ROW: Final = Row(
    "Workers",
    (
        Panel(
            "Saturation",
            (Query(f"sum by (job) ({of(c.WORKER_ACTIVE)}) / sum by (job) ({of(c.WORKER_CONCURRENCY)})", "{{job}}"),),
            "Places in the pools that are taken.",
            unit="percentunit",
        ),
        Panel(
            "Taken, not begun",
            (
                Query(f"sum by (queue) ({of(c.WORKER_RESERVED)})", "{{queue}} waits for a place"),
                Query(f"sum by (queue) ({of(c.WORKER_WAITING)})", "{{queue}} waits until it is due"),
            ),
            "Messages that workers hold.",
        ),
        Panel(
            "Lost",
            (
                Query(rate(c.TASKS, "outcome", one_of(_LOST)), "{{outcome}}"),
                Query(f"sum(rate({of(c.CHILDREN_LOST)}[{RATE}]))", "pool processes"),
                Query(rate(c.LEASES_LOST, "queue"), "{{queue}} leases"),
            ),
            "Time limits, dead processes, and messages that went to another worker.",
            unit="ops",
        ),
        Panel(
            "Main loop, since its last turn",
            (Query(f"time() - {of(c.LOOP_TICK)}", "{{instance}}"),),
            "One that grows hangs. The pool `solo` turns between tasks only.",
            unit="s",
        ),
        Panel(
            "Started",
            (Query(f"time() - {of(c.PROCESS_START)}", "{{job}} {{instance}}"),),
            "Age of each process: a saw says that it restarts.",
            unit="s",
        ),
        Panel(
            "Versions",
            (Query(f"count by (version, celery, pool) ({of(c.WORKER_INFO)})"),),
            "Workers, by what they run.",
            "table",
        ),
    ),
)

BEAT_ROW: Final = Row(
    "Beat",
    (
        Panel(
            "Leaders",
            (
                Query(f"sum({of(c.BEAT_LEADER)})", "say that they lead"),
                Query(f"max({of(c.LEADER_KNOWN)})", "known to Redis"),
            ),
            "One.",
            "stat",
            width=4,
        ),
        Panel(
            "Term",
            (
                Query(f"max by (instance) ({of(c.BEAT_TERM)})", "{{instance}}"),
                Query(f"max({of(c.LEADER_TERM)})", "Redis"),
            ),
            "Rises with each change of the leader.",
            width=4,
        ),
        Panel(
            "Since the last turn",
            (
                Query(f"time() - {of(c.BEAT_TICK)}", "{{instance}}"),
                Query(f"time() - max({of(c.LEADER_TICK)})", "leader, by Redis"),
            ),
            "One that grows hangs.",
            unit="s",
        ),
        Panel(
            "Schedules",
            (
                Query(f"max({of(c.BEAT_SCHEDULES)})", "fired"),
                Query(f"max({of(c.BEAT_PROBLEMS)})", "cannot be used"),
            ),
            "`hardened schedule list` names them.",
            "stat",
        ),
        Panel(
            "Slots by outcome",
            (Query(f"sum by (outcome) (increase({of(c.BEAT_SLOTS)}[{RATE}]))", "{{outcome}}"),),
            "All but `fired` were not, for that reason.",
            width=12,
            stacked=True,
        ),
        Panel(
            "Lateness",
            tuple(Query(quantile(q, c.BEAT_LATE_SECONDS), f"p{q * 100:.0f}") for q in (0.5, 0.99)),
            "From when a slot was due to its fire.",
            unit="s",
            width=12,
        ),
    ),
)

PRODUCER_ROW: Final = Row(
    "Producers",
    (
        Panel(
            "Publishes",
            (Query(rate(c.PUBLISHED, "result"), "{{result}}"),),
            "By what became of them.",
            unit="ops",
            stacked=True,
        ),
        Panel(
            "Publishes that failed",
            (Query(rate(c.PUBLISHED, "task, result", one_of(PUBLISH_FAILED, "result")), "{{task}} {{result}}"),),
            "By task.",
            unit="ops",
        ),
        Panel(
            "Time of a publish",
            tuple(Query(quantile(q, c.PUBLISH_SECONDS), f"p{q * 100:.0f}") for q in (0.5, 0.99)),
            "What the caller waits.",
            unit="s",
        ),
    ),
)

ABOUT: Final = Row(
    "These numbers",
    (
        Panel(
            "Since the stores answered",
            (Query(f"time() - max by (store) ({of(c.QUEUE_SCRAPED)})", "{{store}}"),),
            "Above a minute: what is shown of queues and dead letters is old.",
            unit="s",
        ),
        Panel(
            "Errors",
            (
                Query(rate(c.QUEUE_ERRORS, "store"), "{{store}} did not answer"),
                Query(rate(c.SOURCE_ERRORS, "source"), "{{source}} failed"),
                Query(rate(c.HTTP_FAILURES, "job"), "{{job}} could not have its port"),
            ),
            "While numbers were gathered.",
            unit="ops",
        ),
        Panel(
            "Oddities",
            (
                Query(rate(c.FOLDED, "label"), "{{label}} counted as other"),
                Query(f"sum(rate({of(c.CLOCK_SKEW)}[{RATE}]))", "started before their publish"),
            ),
            "Labels beyond their cap, and clocks that do not agree.",
            unit="ops",
        ),
    ),
)
