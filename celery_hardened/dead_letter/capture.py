"""A letter out of a message as it arrived. Pure, and never raises: it is used on messages that are broken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celery_hardened.dead_letter.describe import cut_middle
from celery_hardened.dead_letter.letter import Attempt, DeadLetter, Reason, fingerprint, letter_id
from celery_hardened.marks import HISTORY_MAX, Marks
from celery_hardened.wire import Wire


def from_wire(
    wire: Wire,
    *,
    reason: Reason,
    error_type: str,
    error_message: str,
    traceback: str,
    location: str,
    now: float,
    worker: str,
    version: str | None,
    queue: str,
    traceback_max: int,
    log_args: Mapping[str, Any],
) -> DeadLetter:
    """Describe the failure of *wire* as a letter.

    Task and ids come from the headers (protocol 2) or the JSON body (protocol 1); what is
    missing or of the wrong type is left out.

    Args:
        location: File and line of the innermost frame; for the fingerprint only.
        now: Seconds since the epoch; when it failed.
        traceback_max: Characters of traceback kept; the middle is cut.
    """
    fields = _fields(wire)
    marks = Marks.read(wire.headers)
    task, task_id = _text(fields.get("task")), _text(fields.get("id"))
    attempt = _count(fields.get("retries"))
    history = (*marks.history, (now, worker, error_type.rpartition(".")[2]))[-HISTORY_MAX:]
    return DeadLetter(
        id=letter_id(task_id, marks.redrives, attempt, wire.delivery_tag),
        reason=reason,
        task=task,
        task_id=task_id,
        root_id=_text(fields.get("root_id")),
        parent_id=_text(fields.get("parent_id")),
        group_id=_text(fields.get("group")),
        queue=queue,
        exchange=wire.exchange,
        routing_key=wire.routing_key,
        body=wire.body,
        body_compressed=wire.body_compressed,
        content_type=wire.content_type,
        content_encoding=wire.content_encoding,
        headers=wire.headers,
        properties=wire.properties,
        error_type=error_type,
        error_message=error_message,
        traceback=cut_middle(traceback, traceback_max),
        fingerprint=fingerprint(task, error_type, error_message, location),
        attempts=tuple(Attempt(*entry) for entry in history),
        attempt=attempt,
        deaths=marks.deaths,
        first_published=marks.first_published,
        first_failed=marks.first_failed if marks.first_failed is not None else now,
        last_failed=now,
        worker=worker,
        version=version,
        redrives=marks.redrives,
        log_args=log_args,
    )


def _fields(wire: Wire) -> Mapping[str, Any]:
    """Where the message says what it is: its headers, or the body of protocol 1."""
    if "task" in wire.headers:
        return wire.headers
    try:
        body = json.loads(wire.body)
    except (ValueError, RecursionError):
        return wire.headers
    return body if isinstance(body, dict) and "task" in body else wire.headers


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else 0
