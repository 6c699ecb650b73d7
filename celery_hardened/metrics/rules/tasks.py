"""Alerts on tasks: do they fail, and does what failed lie there? Pure."""

from __future__ import annotations

from typing import Final

from celery_hardened.metrics.catalogue import (
    DEAD_LETTERS,
    EFFECTS_UNFINISHED,
    LETTERS,
    LETTERS_OLDEST,
    LONGEST_RUNNING,
    PUBLISHED,
    QUEUE_SCRAPED,
    TASKS,
)
from celery_hardened.metrics.family import Family
from celery_hardened.metrics.outcome import FAILED
from celery_hardened.metrics.publish_result import PUBLISH_FAILED
from celery_hardened.metrics.queue_reading import KEEP
from celery_hardened.metrics.rules.rule import Group, Rule, indented
from celery_hardened.metrics.rules.terms import Terms

#: Runs that failed. What never ran (no such task, no message) has no ratio: it is a dead letter, and told as that.
FAILED_RUNS: Final = FAILED - {"unknown", "malformed"}

#: Runs: what was begun, and is neither tried again nor was it done before.
RUNS: Final = FAILED_RUNS | {"success", "reject", "ignore"}

#: Seconds in which what happens now and then is counted.
WINDOW: Final = 900.0
_TIMEOUT: Final = 'outcome="timeout"'
_LOOKED: Final = 'store="dead_letters"'


def _one_of(values: frozenset[str], label: str = "outcome") -> str:
    return f'{label}=~"' + "|".join(sorted(values)) + '"'


def task_rules(terms: Terms) -> Group:
    """Failures, time limits, runs that do not end, dead letters, publishes."""
    t, limits = terms, terms.thresholds
    task, queue, window = t.labels("task"), t.labels("queue"), t.time(WINDOW)

    def risen(labels: str, family: Family, matchers: str = "") -> str:
        return f"sum by {labels} (\n{indented(t.risen(family, matchers, WINDOW))}\n)"

    failed, runs = risen(task, TASKS, _one_of(FAILED_RUNS)), risen(task, TASKS, _one_of(RUNS))
    letters = f"sum by {queue} (max by {t.labels('queue', 'reason')} ({t.series(LETTERS)}))"
    before = f"sum by {queue} (max by {t.labels('queue', 'reason')} ({t.series(LETTERS)} offset {window}))"
    answered = f"{t.series(QUEUE_SCRAPED, _LOOKED)} offset {window}"
    # While a store is away its letters are not shown, which is not the same as none. By the clock of the scrape: what
    # was seen last stays for five minutes where nobody is scraped any more.
    looked = f"max by {t.labels()} (timestamp({answered}) - {answered} < {KEEP:g})"
    rules = (
        Rule(
            "CeleryDeadLettersGrowing",
            "warning",
            # What workers wrote, at once; and what the store holds more than before, whoever wrote it.
            f"{risen(queue, DEAD_LETTERS)} > 0\n"
            f"or\n{letters}\n- (\n  {before}\n  or {letters} * 0 and on {t.labels()} {looked}\n) > 0",
            0,
            "Queue {{ $labels.queue }}: more dead letters in " + window + ': {{ $value | printf "%.0f" }}',
            "`hardened dlq stats` groups them by cause, `hardened dlq list --queue {{ $labels.queue }}` lists them, "
            "`hardened dlq show ID` tells why. When the cause is mended: `hardened dlq redrive --queue "
            "{{ $labels.queue }} --canary 1`.",
        ),
        Rule(
            "CeleryDeadLettersForgotten",
            "info",
            f"max by {t.labels()} ({t.series(LETTERS_OLDEST)}) > {limits.letter_age:g}",
            300,
            "A dead letter has been open for {{ $value | humanizeDuration }}",
            "Retention drops it one day, with the work in it. `hardened dlq stats`, then `hardened dlq redrive` or "
            "`hardened dlq discard --why …`.",
        ),
        Rule(
            "CeleryTaskFailureRatio",
            "warning",
            f"{failed}\n/ (\n{indented(runs)} >= {limits.min_volume}\n) > {limits.failure_ratio:g}",
            300,
            "{{ $labels.task }}: {{ $value | humanizePercentage }} of its runs in " + window + " failed",
            "`hardened dlq list --task {{ $labels.task }}` shows what they failed of. Was there a deployment? If what "
            "they call is down, `hardened switch set retries off` keeps retries from making it worse.",
        ),
        Rule(
            "CeleryTaskTimeouts",
            "warning",
            f"{risen(task, TASKS, _TIMEOUT)} >= {limits.timeouts}",
            0,
            "{{ $labels.task }}: runs at their time limit in " + window + ': {{ $value | printf "%.0f" }}',
            "What does it wait for? A call without a timeout of its own is the usual cause. "
            "`hardened dlq list --task {{ $labels.task }} --reason timeout` lists them; they can be redriven.",
        ),
        Rule(
            "CeleryTaskStuck",
            "warning",
            f"max by {task} ({t.series(LONGEST_RUNNING)}) > {limits.stuck:g}",
            60,
            "{{ $labels.task }}: a run has lasted {{ $value | humanizeDuration }}",
            "It has outlived any time limit, or has none (the pools `threads` and `solo` enforce none). "
            "`celery -A PROJ inspect active` names it and its worker; `py-spy dump` on its process tells where it is. "
            "A hardened task may be killed: it starts again elsewhere.",
        ),
        Rule(
            "CeleryEffectsUnfinished",
            "critical",
            f"{risen(task, EFFECTS_UNFINISHED)} > 0",
            0,
            '{{ $labels.task }}: runs that did their work and could not write it down: {{ $value | printf "%.0f" }}',
            "Their keys stay claimed until the claim runs out, and then the work may be done a second time. Is the "
            "store of claims away, or full? Mend it first. The worker's log has the task ids and keys.",
        ),
        Rule(
            "CeleryPublishFailed",
            "warning",
            f"{risen(task, PUBLISHED, _one_of(PUBLISH_FAILED, 'result'))} > 0",
            0,
            "{{ $labels.task }}: publishes that failed in " + window + ': {{ $value | printf "%.0f" }}',
            "What was not sent is the caller's to send again; after a commit it is a dead letter: "
            "`hardened dlq list --reason unsent`. The label `result` of celery_hardened_published_total tells "
            "whether the broker or the call is at fault.",
        ),
    )
    return Group("tasks", rules)
