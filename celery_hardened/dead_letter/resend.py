"""What a letter's message looks like when it is sent again: faithful to the byte, its clock reset. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kombu.utils import json as kombu_json

from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.errors import RedriveRefusedError
from celery_hardened.marks import HEADER, REFERENCE, Marks

#: Changes arguments: a function from (args, kwargs) to the new pair, or ``{"args": [...],
#: "kwargs": {...}}``, where args replace all of them and kwargs are laid over those there are.
Edit: TypeAlias = Callable[[list[Any], dict[str, Any]], tuple[list[Any], dict[str, Any]]] | Mapping[str, Any]

#: What would make a worker revoke, delay or give up on the message as soon as it comes.
_RESET = {"retries": 0, "eta": None, "expires": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send; the fields are the arguments of ``wire.send``."""

    body: bytes
    body_compressed: bool
    content_type: str | None
    content_encoding: str | None
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    exchange: str
    routing_key: str


def outgoing(
    letter: DeadLetter, *, token: str, now: float, to_queue: str | None = None, edit: Edit | None = None
) -> Outgoing:
    """Make the message of a redrive.

    Task id, workflow links, stamps, custom headers, priority and the body's bytes
    stay as they were. Retries, eta, expiry and our own marks start anew: a redrive
    is a new horizon, and the letter keeps the history of the old one.

    Args:
        token: Of this redrive; the message that starts first with one wins the letter.
        now: Seconds since the epoch, the new time of publishing.
        to_queue: Send it there instead of to the letter's own queue.
        edit: Changes the arguments. The body is then written anew, as JSON.

    Raises:
        RedriveRefusedError: It has no destination, or its arguments cannot be edited.
    """
    exchange, routing_key = _destination(letter, to_queue)
    headers = dict(letter.headers)
    body = letter.body
    if "task" in headers:
        headers.update(_RESET)
    else:
        body = _reset_protocol_1(body)
    if edit is not None:
        body = _edited(letter, body, edit)
        # They show the arguments as they were.
        for name in ("argsrepr", "kwargsrepr"):
            headers.pop(name, None)
    marks = Marks.read(letter.headers)
    headers[HEADER] = Marks(
        published=now,
        first_published=now,
        redrives=letter.redrives + 1,
        redrive=(letter.id, token),
        key=marks.key if edit is None else None,  # other arguments may be another key; the worker takes it from them
        dedup=marks.dedup,
        slot=marks.slot,
        schedule=marks.schedule,
        missed=marks.missed,
        run=marks.run,
        once=marks.once,  # not yields: somebody wants it to run, beside a later run too
        correlation_id=marks.correlation_id,
    ).header()
    return Outgoing(
        body=body,
        body_compressed=letter.body_compressed,
        content_type=letter.content_type,
        content_encoding=letter.content_encoding,
        headers=headers,
        # The broker's copy of `expires`: it would throw the message away unseen.
        properties={name: value for name, value in letter.properties.items() if name != "expiration"},
        exchange=exchange,
        routing_key=routing_key,
    )


def _destination(letter: DeadLetter, to_queue: str | None) -> tuple[str, str]:
    """Exchange and routing key. The default exchange takes it to one queue; going back through
    the exchange it came by could copy it into others."""
    if queue := to_queue or letter.queue:
        return "", queue
    if letter.routing_key:
        return letter.exchange, letter.routing_key
    raise RedriveRefusedError(letter.id, "its queue is not known. Name the queue to send it to (--to-queue).")


def _reset_protocol_1(body: bytes) -> bytes:
    """Message protocol 1 has retries, eta and expires in the body; whatever else this is stays as it is."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(content, dict) or not any(content.get(name) for name in _RESET):
        return body
    return json.dumps({**content, **_RESET}).encode()


def _edited(letter: DeadLetter, body: bytes, edit: Edit) -> bytes:
    if letter.content_type != "application/json" or letter.body_compressed:
        raise RedriveRefusedError(letter.id, "its arguments cannot be edited, because its body is no JSON.")
    if REFERENCE.encode() in body:
        raise RedriveRefusedError(letter.id, "its arguments cannot be edited, because they lie in the payload store.")
    encoding = letter.content_encoding or "utf-8"
    try:
        content = kombu_json.loads(body.decode(encoding))
        if isinstance(content, dict):
            content["args"], content["kwargs"] = _apply(edit, content["args"], content["kwargs"])
        else:
            args, kwargs, *embed = content
            content = [*_apply(edit, args, kwargs), *embed]
        text: str = kombu_json.dumps(content)
        return text.encode(encoding)
    except Exception as problem:
        # The body is foreign, and so is the function.
        raise RedriveRefusedError(
            letter.id, f"its arguments could not be edited ({type(problem).__name__}: {problem})."
        ) from problem


def _apply(edit: Edit, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    if callable(edit):
        args, kwargs = edit(list(args), dict(kwargs))
        return list(args), dict(kwargs)
    return list(edit.get("args", args)), {**kwargs, **edit.get("kwargs", {})}
