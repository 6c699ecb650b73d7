"""Alerts on RabbitMQ's own series, from its plugin ``rabbitmq_prometheus``: for who scrapes the broker anyway. Pure.

They ask nothing of our exporter. Messages of ours carry the time of their publish in the property ``timestamp``, so
that the plugin can tell the age of a queue's head (``/metrics/per-object``; in ``/metrics/detailed`` the names begin
with ``rabbitmq_detailed_``).
"""

from __future__ import annotations

import re
from typing import Final

from celery_hardened.metrics.catalogue import TASKS
from celery_hardened.metrics.rules.queues import ENDED
from celery_hardened.metrics.rules.rule import Group, Rule, indented
from celery_hardened.metrics.rules.terms import Terms, quoted

#: Dead letter queues, those in which messages wait until they are due, and what Celery talks over.
_NO_TASKS: Final = ".+[.]dlq|celery_delayed_.+|.+[.]pidbox|celeryev.*|amq[.].+"


def _name(rest: str) -> str:
    return f'{{__name__=~"rabbitmq_(detailed_)?queue_{rest}"}}'


def _named(queues: tuple[str, ...]) -> str:
    """Queues of tasks: those named, else all but those that hold messages without a consumer by design."""
    if not queues:
        return f'queue!~"{_NO_TASKS}"'
    return f'queue=~"{quoted("|".join(re.escape(name) for name in queues))}"'


def rabbitmq_rules(terms: Terms) -> Group:
    """Oldest message, no consumer, nothing ends."""
    t, limits = terms, terms.thresholds
    queue = t.labels("vhost", "queue")
    named = _named(terms.queues)
    ready = f"max by {queue} ({t.series(_name('messages_ready'), named)})"
    head = f"max by {queue} ({t.series(_name('head_message_timestamp'), named)} > 0)"
    consumers = f"max by {queue} ({t.series(_name('consumers'), named)})"
    ended = f"sum by {t.labels('queue')} (\n{indented(t.risen(TASKS, ENDED, limits.stalled))}\n)"
    rules = (
        Rule(
            "CeleryRabbitQueueOldestMessage",
            "warning",
            f"time() - {head} > {limits.oldest_age:g}\nand on {queue} {ready} > 0",
            120,
            "Queue {{ $labels.queue }}: its oldest message has waited {{ $value | humanizeDuration }}",
            "As CeleryQueueOldestMessage: add workers if all are busy; if they are idle, see whether they consume.",
        ),
        Rule(
            "CeleryRabbitQueueNoConsumer",
            "critical",
            f"{ready} > 0\nand on {queue} {consumers} == 0",
            300,
            'Queue {{ $labels.queue }}: RabbitMQ knows no consumer; messages that wait: {{ $value | printf "%.0f" }}',
            "Start workers with `-Q {{ $labels.queue }}`. If the queue is not this app's, print the rules with the "
            "app's queues in them.",
        ),
        Rule(
            "CeleryRabbitQueueStalled",
            "critical",
            f"{ready} > 0\nunless on {t.labels('queue')}\n{ended} > 0",
            limits.stalled / 2,
            "Queue {{ $labels.queue }}: for "
            + t.time(limits.stalled)
            + ' nothing has ended; messages that wait: {{ $value | printf "%.0f" }}',
            "As CeleryQueueStalled: workers are gone, hang, or let every message wait.",
        ),
    )
    return Group("rabbitmq", rules)
