"""The fields of log records: one name each, and what it means. The reference page is held to this.

A record of ours carries those that it knows (``extra=``); ``JsonFormatter`` prints them flat.
"""

from __future__ import annotations

from typing import Final

#: Before the name of an argument that ``log_args`` lists: ``arg_order_id``.
ARGUMENT: Final = "arg_"

#: Fields of the two records of a run, ``starts`` and its end.
OF_A_RUN: Final[dict[str, str]] = {
    "task": "name of the task",
    "task_id": "its id; a retry and a redrive keep it",
    "root_id": "id of the task that the workflow began with, if that is another one",
    "attempt": "failed attempts before this one: 0 is the first",
    "queue": "the queue it was taken from",
    "correlation_id": "what belongs together: the web request's id, or the root task's",
    "wait_ms": "from when it was published, or due, until its body began",
    "runtime_ms": "how long its body ran",
    "outcome": "how the delivery ended; the words are those of the metric",
    "exc_type": "class of the exception it ended with",
    "retry_in_ms": "delay until the next attempt, or until it comes back",
    "worker": "name of the worker, as in `celery inspect`",
    "schedule": "the schedule that fired it",
    "slot": "the instant it was fired for, ISO 8601 in UTC",
    "traceparent": "W3C trace context that its message carries",
}

#: Fields of other records.
ELSEWHERE: Final[dict[str, str]] = {
    "reason": "why it is a dead letter",
    "letter": "id of the dead letter",
    "key": "idempotency key, or that of a window",
    "observed": "a dry run (`hardened_observe`): how often the same would have been done before",
}

#: What ``JsonFormatter`` adds to each line.
OF_A_LINE: Final[dict[str, str]] = {
    "ts": "when, ISO 8601 in UTC",
    "level": "`INFO`, `ERROR`...",
    "logger": "name of the logger",
    "message": "the text",
    "pid": "the process",
    "traceback": "the exception as text",
    "stack": "the stack as text, where the caller asked for it",
}

KNOWN: Final[frozenset[str]] = frozenset({*OF_A_RUN, *ELSEWHERE})
