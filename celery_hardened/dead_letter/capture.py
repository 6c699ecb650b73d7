"""A dead letter out of a message as it was on the wire. Pure, and it never raises:

what is captured here is, often enough, exactly what is wrong with the message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_hardened.dead_letter.describe import cut_middle
from celery_hardened.dead_letter.letter import Attempt, DeadLetter, Reason, fingerprint, letter_id
from celery_hardened.marks import HISTORY_MAX, Marks
from celery_hardened.wire import STALE_HEADERS, Wire

#: Reasons of messages whose body was never started.
_NEVER_STARTED: frozenset[Reason] = frozenset({"unknown_task", "malformed", "undecodable", "unsent"})

#: Larger integers are no ids; Python refuses to write the largest ones out.
_LARGE = 10**18

#: Properties a redelivery repeats and that tell one message from another.
_TELLING = ("correlation_id", "message_id", "timestamp", "reply_to", "type", "app_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which task a message says it is."""

    task: str | None = None
    task_id: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    retries: int = 0


def identify(wire: Wire) -> Identity:
    """Read who the message is for, from protocol 2 headers or a protocol 1 body. Never raises."""
    headers = wire.headers
    if "task" in headers:
        return Identity(
            task=_name(headers.get("task")),
            task_id=_name(headers.get("id")),
            root_id=_name(headers.get("root_id")),
            parent_id=_name(headers.get("parent_id")),
            group_id=_name(headers.get("group")),
            retries=_count(headers.get("retries")),
        )
    body = _json_object(wire)
    task = _name(body.get("task"))
    if task is None:
        # Not a task at all: an "id" in it names something of somebody else's, and not only once.
        return Identity()
    return Identity(
        task=task,
        task_id=_name(body.get("id")),
        group_id=_name(body.get("group")) or _name(body.get("taskset")),
        retries=_count(body.get("retries")),
    )


def from_wire(
    wire: Wire,
    *,
    reason: Reason,
    error_type: str,
    error_message: str,
    traceback: str = "",
    location: str = "",
    now: float,
    worker: str,
    version: str | None,
    queue: str,
    traceback_max: int,
    log_args: Mapping[str, Any] | None = None,
    started: bool | None = None,
) -> DeadLetter:
    """Build the letter of a message that ended in failure.

    Args:
        now: When it failed; seconds since the epoch.
        queue: The queue it was in.
        started: Whether its body was started, so that this failure counts among its attempts.
            ``None``: as *reason* has it.
    """
    who = identify(wire)
    marks = Marks.read(wire.headers)
    error_type, error_message, worker = _clean(error_type), _clean(error_message), _clean(worker)
    attempts = [Attempt(at, _clean(where), _clean(error)) for at, where, error in marks.history]
    if started if started is not None else reason not in _NEVER_STARTED:
        attempts.append(Attempt(now, worker, error_type.rpartition(".")[2]))
    # The id in a malformed message may be anything, and in every message of its producer the same.
    trusted = who.task_id if reason != "malformed" else None
    return DeadLetter(
        id=letter_id(trusted, marks.redrives, who.retries, _tag(wire), wire.body),
        reason=reason,
        task=who.task,
        task_id=who.task_id,
        root_id=who.root_id,
        parent_id=who.parent_id,
        group_id=who.group_id,
        queue=_clean(queue),
        exchange=_clean(wire.exchange),
        routing_key=_clean(wire.routing_key),
        body=wire.body,
        body_compressed=wire.body_compressed,
        content_type=wire.content_type,
        content_encoding=wire.content_encoding,
        headers=wire.headers,
        properties=wire.properties,
        error_type=error_type,
        error_message=error_message,
        traceback=cut_middle(_clean(traceback), traceback_max),
        fingerprint=fingerprint(who.task, error_type, error_message, _clean(location)),
        attempts=tuple(attempts[-HISTORY_MAX:]),
        attempt=who.retries,
        deaths=marks.deaths,
        first_published=marks.first_published,
        first_failed=marks.first_failed if marks.first_failed is not None else now,
        last_failed=now,
        worker=worker,
        version=version,
        redrives=marks.redrives,
        log_args=log_args or {},
    )


def _tag(wire: Wire) -> str:
    """What names a message that has no task id, the same at every delivery of it.

    On Redis that is its delivery tag, a UUID made at publish. On AMQP a delivery tag
    only counts up in its channel: the first message of every connection has tag 1.
    There the message is named by what is in it (its body is part of the letter's id anyway).
    """
    if not wire.delivery_tag.isdigit():
        return _clean(wire.delivery_tag)
    digest = hashlib.sha256()
    telling = {name: wire.properties.get(name) for name in _TELLING}
    # Brokers write x- headers of their own between two deliveries.
    telling.update((name, value) for name, value in wire.headers.items() if not _is_stale(name))
    for name in sorted(map(str, telling)):
        value = telling.get(name)
        if isinstance(value, (str, bytes, float)) or (isinstance(value, int) and abs(value) < _LARGE):
            digest.update(f"\0{name}={value!r}".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:12]


def _is_stale(header: object) -> bool:
    return header in STALE_HEADERS or str(header).startswith("x-")


def _json_object(wire: Wire) -> Mapping[str, Any]:
    if wire.body_compressed:
        return {}
    try:
        body = json.loads(wire.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _name(value: object) -> str | None:
    if isinstance(value, bytes):  # how the AMQP client hands over a string that is no UTF-8
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGE:
        value = str(value)
    return _clean(value) if isinstance(value, str) and value else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**6 else 0


def _clean(text: str) -> str:
    """*text* without lone surrogates, which JSON may carry in and no store can carry out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
