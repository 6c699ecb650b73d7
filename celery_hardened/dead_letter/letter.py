"""The dead letter: what is kept of a task that ended in failure, and how it is written down.

The envelope is JSON, versioned by ``v``; raw bytes are base64. A reader accepts
every version up to its own and refuses newer ones with ``EnvelopeError``.
``docs/reference/envelope.md`` is the field-by-field reference, held to this
file by a test.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from celery_hardened.errors import EnvelopeError

#: Version of the envelope written by this release.
ENVELOPE_VERSION = 1

Reason = Literal[
    "permanent",
    "exhausted",
    "expired_horizon",
    "timeout",
    "poison",
    "lost",
    "rejected",
    "unknown_task",
    "malformed",
    "undecodable",
    "unsent",
]

#: Every reason a letter can have, in the order they are shown.
REASONS: tuple[Reason, ...] = get_args(Reason)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the body that did not end well."""

    at: float
    """When it failed: seconds since the epoch, the worker's clock."""

    worker: str
    """Node name of the worker, ``celery@host``."""

    error: str
    """Class name of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One final failure, complete enough to be understood and to be sent again.

    Times are seconds since the epoch. ``body``, ``headers`` and ``properties``
    are those of the message as it arrived, so a redrive is faithful to the byte.
    """

    id: str
    """Deterministic (see ``letter_id``): writing the same failure twice gives one letter."""

    reason: Reason

    task: str | None = None
    task_id: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None

    queue: str = ""
    """Queue the message was in, as far as its delivery tells."""

    exchange: str = ""
    routing_key: str = ""

    body: bytes = b""
    body_compressed: bool = False
    """The body could not be decompressed and is kept as it came. (kombu decompresses on
    arrival and leaves the ``compression`` header in place; sending both again would be garbage.)"""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)

    error_type: str = ""
    """Dotted name of the error's class. Data only: nothing imports by it."""

    error_message: str = ""
    traceback: str = ""
    fingerprint: str = ""
    """Groups letters with the same cause (see ``fingerprint``)."""

    attempts: tuple[Attempt, ...] = ()
    """The failed starts, oldest first; the last twenty."""

    attempt: int = 0
    """Number of retries spent when it failed (Celery's ``request.retries``)."""

    deaths: int = 0
    """Starts whose process died."""

    first_published: float | None = None
    first_failed: float | None = None
    last_failed: float = 0.0

    worker: str = ""
    version: str | None = None
    """The worker's code version: ``hardened_version``."""

    redrives: int = 0
    """How often this task had been redriven when it failed."""

    parked: bool = False
    """It belongs to a chord that is kept open for its redrive."""

    log_args: Mapping[str, Any] = field(default_factory=dict)
    """The task's allow-listed arguments (``log_args``), by name."""

    max_age: float | None = None
    """Seconds this letter is kept; ``None`` is ``hardened_dead_letter_max_age``."""


#: Longer task ids are foreign; an id has to fit on a line.
_ID_MAX = 120


def letter_id(task_id: str | None, redrives: int, attempt: int, delivery_tag: str, body: bytes = b"") -> str:
    """Name a failure, the same however often and wherever it is written down.

    A crash between writing the letter and acking the message brings the message
    back; the second write must find the first. So the id is made of what a
    redelivery repeats: task id, redrive number, attempt.

    A message without a task id has only its delivery tag. On AMQP that is a small
    number, counted anew by every channel, so two messages would share a letter
    and one of them be lost: *body* tells them apart.
    """
    if not task_id:
        return _encodable(f"tag-{delivery_tag}-{hashlib.sha256(body).hexdigest()[:12]}")
    if len(task_id) > _ID_MAX:
        task_id = f"{task_id[:_ID_MAX]}~{_digest(task_id)}"
    return _encodable(f"{task_id}-{redrives}-{attempt}")


def other_id(letter_id: str, first_published: float | None, body: bytes) -> str:
    """The id of a failure whose ``letter_id`` names the failure of another message already."""
    said = hashlib.sha256(f"{first_published!r}\0".encode() + body).hexdigest()
    return f"{letter_id}~{said[:12]}"


_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+|'[^']*'|\"[^\"]*\"")


def fingerprint(task: str | None, error_type: str, error_message: str, location: str) -> str:
    """Hash what letters of one cause share, so that they can be shown as one line.

    Task, error class, the place it was raised (file and line of the innermost
    frame) and the message with its numbers, ids and quoted parts taken out.
    """
    shape = _VOLATILE.sub("#", error_message[:500])
    return _digest("\n".join((task or "", error_type, location, shape)))


def dump(letter: DeadLetter) -> bytes:
    """Write *letter* as an envelope (UTF-8 JSON)."""
    data = {f.name: getattr(letter, f.name) for f in fields(letter)}
    data["v"] = ENVELOPE_VERSION
    data["body"] = base64.b64encode(letter.body).decode("ascii")
    data["attempts"] = [asdict(attempt) for attempt in letter.attempts]
    # These come off the wire and may hold what JSON cannot: a foreign message must not be
    # lost because of an odd header.
    for name in ("headers", "properties", "log_args"):
        data[name] = {str(key): _as_json(value) for key, value in data[name].items()}
    return json.dumps(data, separators=(",", ":")).encode("ascii")


def load(envelope: bytes) -> DeadLetter:
    """Read an envelope.

    Raises:
        EnvelopeError: It is no envelope, or a newer version wrote it.
    """
    try:
        data = json.loads(envelope)
        version = data.pop("v")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as problem:
        raise EnvelopeError(f"{type(problem).__name__}: {problem}") from problem
    if not isinstance(version, int) or not 1 <= version <= ENVELOPE_VERSION:
        raise EnvelopeError(f"its version is {version!r} and this release reads 1 to {ENVELOPE_VERSION}")

    known = {f.name for f in fields(DeadLetter)}
    data = {name: value for name, value in data.items() if name in known}
    try:
        if data["reason"] not in REASONS:
            raise EnvelopeError(f"its reason is {data['reason']!r}")
        data["body"] = base64.b64decode(data.get("body", ""), validate=True)
        data["attempts"] = tuple(Attempt(**attempt) for attempt in data.get("attempts", ()))
        return DeadLetter(**data)
    except (KeyError, TypeError, binascii.Error) as problem:
        raise EnvelopeError(f"{type(problem).__name__}: {problem}") from problem


def _as_json(value: Any) -> Any:
    """*value* as JSON can hold it; where it cannot, what comes closest."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    try:
        return json.loads(json.dumps(value, default=_as_text))
    except (TypeError, ValueError, RecursionError):
        return _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    try:
        return str(value)
    except RecursionError:
        return f"<{type(value).__name__} nested too deeply>"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _encodable(text: str) -> str:
    """JSON may hold lone surrogates, and no store, file or terminal takes them."""
    return text.encode("utf-8", "backslashreplace").decode()
