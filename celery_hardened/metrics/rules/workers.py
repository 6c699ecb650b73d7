"""Alerts on workers: do they live, take messages, and keep what they took? Pure."""

from __future__ import annotations

from typing import Final

from celery_hardened.metrics.catalogue import (
    FOLDED,
    HTTP_FAILURES,
    LEASES_LOST,
    LOOP_TICK,
    PROCESS_START,
    SOURCE_ERRORS,
    TASKS,
    WORKER_CONSUMING,
    WORKER_INFO,
)
from celery_hardened.metrics.family import Family
from celery_hardened.metrics.rules.rule import Group, Rule, indented
from celery_hardened.metrics.rules.terms import Terms

#: Seconds in which what happens now and then is counted.
WINDOW: Final = 900.0
_LOST: Final = 'outcome=~"worker_lost|poison"'
_SOLO: Final = 'pool="solo"'


def worker_rules(terms: Terms) -> Group:
    """Processes, leases, consuming; and the metrics themselves."""
    t, limits = terms, terms.thresholds
    window = t.time(WINDOW)
    one = t.labels("job", "instance")

    def risen(labels: str, family: Family, matchers: str = "", within: float = WINDOW) -> str:
        return f"sum by {labels} (\n{indented(t.risen(family, matchers, within))}\n)"

    rules = (
        Rule(
            "CeleryWorkerLost",
            "warning",
            f"{risen(t.labels('task'), TASKS, _LOST)} >= {limits.worker_lost}",
            0,
            "{{ $labels.task }}: pool processes that died in it in " + window + ': {{ $value | printf "%.0f" }}',
            "Out of memory is the usual cause: look at the kernel's log or the container's OOMKilled, and at "
            "`hardened dlq list --task {{ $labels.task }} --reason poison` for the arguments that did it. "
            "A poison message stops by itself; many different ones ask for more memory or a lower concurrency.",
        ),
        Rule(
            "CeleryLeasesLost",
            "warning",
            f"{risen(t.labels('queue'), LEASES_LOST)} > 0",
            0,
            "Queue {{ $labels.queue }}: messages that went to another worker while they ran: "
            '{{ $value | printf "%.0f" }}',
            "Their tasks may have run twice at once. A worker could not renew for a whole `hardened_lease`: its host "
            "slept or had no CPU, or Redis did not answer. If it happens again, give workers more CPU or raise "
            "`hardened_lease`.",
        ),
        Rule(
            "CeleryWorkerNotConsuming",
            "critical",
            f"max by {t.labels('job', 'instance', 'queue')} ({t.series(WORKER_CONSUMING)}) == 0",
            300,
            "{{ $labels.instance }} is up and does not take from queue {{ $labels.queue }}",
            "It lost the broker and does not find it again, lost its consumer, or drains longer than it should. Its "
            "`/readyz` says which. If others consume, restart this one; if none does, look at the broker.",
        ),
        Rule(
            "CeleryWorkerHangs",
            "critical",
            f"max by {one} (time() - {t.series(LOOP_TICK)}) > {limits.stale:g}\n"
            f"unless on {one} {t.series(WORKER_INFO, _SOLO)}\n"
            # The loop of one that seeks its broker, or drains, does not turn either: CeleryWorkerNotConsuming tells of
            # the first, and of the second when it lasts.
            f"and on {one} {t.series(WORKER_CONSUMING)} > 0",
            60,
            "{{ $labels.instance }}: its main loop has not turned for {{ $value | humanizeDuration }}",
            "It answers for its metrics and does nothing else. `/livez` is red as well, so a probe restarts it; where "
            "there is none, `py-spy dump` on the process, then restart it.",
        ),
        Rule(
            "CeleryProcessRestarts",
            "warning",
            f"sum by {one} (changes({t.series(PROCESS_START)}[{window}])) >= 3",
            0,
            "{{ $labels.instance }} has started again {{ $value }} times in " + window,
            "It ends soon after it began. The log of the one before tells why (`kubectl logs --previous`): wrong "
            "settings, no memory, or a liveness probe that is too strict.",
        ),
        Rule(
            "CeleryEndpointTaken",
            "info",
            f"{risen(one, HTTP_FAILURES)} >= 3",
            0,
            '{{ $labels.instance }} could not have its port {{ $value | printf "%.0f" }} times',
            "It answers now; meanwhile nobody saw it. Two processes of one host have the same `hardened_http`, or the "
            "one before was long in ending. Give each its own port by `$HARDENED_HTTP`.",
        ),
        Rule(
            "CeleryMetricsIncomplete",
            "warning",
            f"{risen(t.labels('job', 'source'), SOURCE_ERRORS)} > 0",
            300,
            "{{ $labels.source }} of {{ $labels.job }} fails: metrics are missing, and alerts on them are blind",
            "The process goes on. Its log has the error; it is a fault of this package or of a source that the "
            "project added.",
        ),
        Rule(
            "CeleryLabelsFolded",
            "info",
            f"{risen(t.labels('label'), FOLDED, within=3600)} > 0",
            0,
            "There are more values of the label {{ $labels.label }} than are shown: the rest is counted as `other`",
            "Totals are right. Raise `hardened_metrics_max_tasks` if there are so many tasks; if names are made at run "
            "time, mend that.",
        ),
    )
    return Group("workers", rules)
