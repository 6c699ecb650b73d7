"""Panels on work: queues, tasks, dead letters. Pure."""

from __future__ import annotations

from typing import Final

from celery_hardened.metrics import catalogue as c
from celery_hardened.metrics.outcome import FINAL, MEANING
from celery_hardened.metrics.panels.panel import Panel, Query, Row, of, one_of, quantile, rate
from celery_hardened.metrics.rules.tasks import FAILED_RUNS, RUNS

_ENDED: Final = 'outcome!~"' + "|".join(sorted(set(MEANING) - FINAL)) + '"'
_WAITING: Final = f"max by (queue) ({of(c.QUEUE_WAITING)})"
_DONE: Final = rate(c.TASKS, "queue", _ENDED)

SIGNALS: Final = Row(
    "Golden signals",
    (
        Panel("Waiting", (Query(_WAITING, "{{queue}}"),), "Messages of all priorities.", "stat", width=3),
        Panel(
            "Oldest",
            (Query(f"max by (queue) ({of(c.QUEUE_OLDEST)})", "{{queue}}"),),
            "How long the oldest of them has waited.",
            "stat",
            "s",
            width=3,
            worst=600,
        ),
        Panel(
            "Running",
            (Query(f"sum by (queue) ({of(c.WORKER_ACTIVE)})", "{{queue}}"),),
            "Tasks that run now.",
            "stat",
            width=3,
        ),
        Panel("Done a minute", (Query(f"60 * {_DONE}", "{{queue}}"),), "Work that is over.", "stat", width=3),
        Panel(
            "Failed a minute",
            (Query(f"60 * {rate(c.TASKS, 'queue', one_of(FAILED_RUNS))}", "{{queue}}"),),
            "Failures, time-outs, and runs whose process died.",
            "stat",
            width=3,
            worst=1,
        ),
        Panel(
            "Dead letters",
            (Query(f"sum by (queue) (max by (queue, reason) ({of(c.LETTERS)}))", "{{queue}}"),),
            "Open ones.",
            "stat",
            width=3,
            worst=1,
        ),
        Panel(
            "Wait, p99",
            (Query(quantile(0.99, c.TASK_WAIT_SECONDS, "queue"), "{{queue}}"),),
            "From the publish, or when it was due, to the start.",
            "stat",
            "s",
            width=3,
        ),
        Panel(
            "Workers",
            (Query(f"count({of(c.WORKER_CONCURRENCY)})"),),
            "That are scraped.",
            "stat",
            width=3,
        ),
    ),
)

QUEUES: Final = Row(
    "Queues",
    (
        Panel(
            "Depth",
            (
                Query(_WAITING, "{{queue}} waiting"),
                Query(f"max({of(c.QUEUE_DELAYED)})", "delayed"),
                Query(f"max({of(c.QUEUE_UNACKED)})", "held by workers"),
            ),
            "Delayed: not due yet. Held: taken, and not acknowledged.",
        ),
        Panel(
            "Age of the oldest message",
            (Query(f"max by (queue) ({of(c.QUEUE_OLDEST)})", "{{queue}}"),),
            "The signal to scale by.",
            unit="s",
        ),
        Panel(
            "Drain time",
            (Query(f"{_WAITING} / ({_DONE} > 0)", "{{queue}}"),),
            "What waits, at the present rate. Without a line: nothing ends.",
            unit="s",
        ),
        Panel(
            "Wait in the queue",
            tuple(Query(quantile(q, c.TASK_WAIT_SECONDS), f"p{q * 100:.0f}") for q in (0.5, 0.95, 0.99)),
            "From the publish, or when it was due, to the start.",
            unit="s",
            width=12,
        ),
        Panel(
            "Consumers",
            (
                Query(f"sum by (queue) ({of(c.WORKER_CONSUMING)})", "{{queue}}"),
                Query(f"max by (queue) ({of(c.QUEUE_CONSUMERS)})", "{{queue}} by the broker"),
                Query(f"max by (queue) ({of(c.QUEUE_MISSING)}) > 0", "{{queue}} does not exist"),
            ),
            "Workers that take from the queue.",
            width=12,
        ),
    ),
)

TASK_ROW: Final = Row(
    "Tasks",
    (
        Panel(
            "Throughput by outcome",
            (Query(rate(c.TASKS, "outcome"), "{{outcome}}"),),
            "Each message that a worker took ends once.",
            unit="ops",
            width=12,
            stacked=True,
        ),
        Panel(
            "Failed of all runs",
            (
                Query(
                    f"sum by (task) (increase({of(c.TASKS, one_of(FAILED_RUNS))}[$__range]))\n"
                    f"/ (sum by (task) (increase({of(c.TASKS, one_of(RUNS))}[$__range])) > 0)",
                    "{{task}}",
                ),
            ),
            "Over the time that is shown. Ratios of a few runs say little.",
            "table",
            "percentunit",
            width=6,
        ),
        Panel(
            "Exceptions",
            (Query(f"topk(10, {rate(c.TASK_EXCEPTIONS, 'task, exception')})", "{{task}} {{exception}}"),),
            "Runs that raised, by class, also those that are tried again.",
            unit="ops",
            width=6,
        ),
        Panel(
            "Run time, p99",
            (Query(f"topk(10, {quantile(0.99, c.TASK_SECONDS, 'task')})", "{{task}}"),),
            "Of all runs, failed ones too.",
            unit="s",
        ),
        Panel(
            "Longest running",
            (Query(f"topk(10, max by (task) ({of(c.LONGEST_RUNNING)}))", "{{task}}"),),
            "How long the longest run that is not over has lasted.",
            unit="s",
        ),
        Panel(
            "Runs that lost their key",
            (
                Query(rate(c.CLAIMS_LOST, "task"), "{{task}} lost its claim"),
                Query(rate(c.EFFECTS_UNFINISHED, "task"), "{{task}} could not write down its end"),
            ),
            "Idempotent runs that another run overtook, or whose end could not be kept.",
            unit="ops",
        ),
    ),
)

LETTER_ROW: Final = Row(
    "Dead letters",
    (
        Panel(
            "Open",
            (
                Query(f"max by (queue, reason) ({of(c.LETTERS)})", "{{queue}} {{reason}}"),
                Query(f"max by (queue) ({of(c.QUEUE_DEAD)})", "{{queue}} in RabbitMQ's dead letter queue"),
            ),
            "By queue and reason.",
            stacked=True,
        ),
        Panel(
            "Written",
            (Query(rate(c.DEAD_LETTERS, "task, reason"), "{{task}} {{reason}}"),),
            "By task and reason.",
            unit="ops",
        ),
        Panel(
            "Oldest",
            (Query(f"max({of(c.LETTERS_OLDEST)})", "oldest"),),
            "Retention drops it one day.",
            unit="s",
        ),
    ),
)
