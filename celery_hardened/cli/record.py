"""A letter as a JSON record, with its arguments left out unless asked for.

The shapes are documented in ``docs/reference/cli.md`` and held to it by a test.
"""

from __future__ import annotations

import json
from typing import Any

from celery_hardened.cli.text import without_passwords
from celery_hardened.dead_letter.contract import StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter

#: Celery publishes every argument in clear in these.
_ARGUMENT_HEADERS = frozenset({"argsrepr", "kwargsrepr"})

_PLAIN_FIELDS = (
    "id",
    "reason",
    "task",
    "task_id",
    "root_id",
    "parent_id",
    "group_id",
    "queue",
    "exchange",
    "routing_key",
    "error_type",
    "fingerprint",
    "attempt",
    "deaths",
    "redrives",
    "parked",
    "first_published",
    "first_failed",
    "last_failed",
    "worker",
    "version",
    "content_type",
    "content_encoding",
)


def summary(stored: StoredLetter, *, show_args: bool) -> dict[str, Any]:
    """One line of ``dlq list --json``."""
    letter = stored.letter
    record = {name: getattr(letter, name) for name in _PLAIN_FIELDS}
    record |= {
        "state": stored.state,
        "stored_at": stored.stored_at,
        "successor": stored.successor,
        "error_message": without_passwords(letter.error_message),
        "log_args": dict(letter.log_args),
        "body_bytes": len(letter.body),
    }
    if show_args:
        record["arguments"] = arguments(letter)
    return record


def details(stored: StoredLetter, *, show_args: bool) -> dict[str, Any]:
    """Everything ``dlq show --json`` tells."""
    letter = stored.letter
    return summary(stored, show_args=show_args) | {
        "traceback": without_passwords(letter.traceback),
        "attempts": [{"at": each.at, "worker": each.worker, "error": each.error} for each in letter.attempts],
        "headers": {
            name: value for name, value in letter.headers.items() if show_args or name not in _ARGUMENT_HEADERS
        },
        "properties": dict(letter.properties),
        "audit": [{"at": entry.at, "action": entry.action, "by": entry.by, "why": entry.why} for entry in stored.audit],
    }


def arguments(letter: DeadLetter) -> dict[str, Any]:
    """Decode the body: ``{"args", "kwargs"}``, or ``{"undecoded": why}``.

    Only JSON is read. Reading pickle runs whatever the sender wrote.
    """
    if letter.body_compressed:
        return {"undecoded": "the body could not be decompressed"}
    if letter.content_type != "application/json":
        return {"undecoded": f"the content type is {letter.content_type}; only application/json is read"}
    try:
        body = json.loads(letter.body)
    except (ValueError, RecursionError) as problem:
        return {"undecoded": f"the body is not JSON: {problem}"}
    match body:
        case [list(args), dict(kwargs), *_]:
            return {"args": args, "kwargs": kwargs}
        case {"args": args, "kwargs": kwargs}:
            return {"args": args, "kwargs": kwargs}
    return {"undecoded": "the body is JSON, but not the arguments of a task"}
