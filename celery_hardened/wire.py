"""A message as it was on the wire: taken off a delivery, and sent again to the byte.

Dead letters, poison, redrives and broker dead-letter queues all need exactly
this, and all have the same traps (compression, delivery tags, topic exchanges),
so it is done here once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from celery import Celery
from kombu import Producer
from kombu.message import Message

#: Written by the broker or the transport for one delivery; a second message makes its own.
#: Re-using a delivery tag would let two messages share one entry in kombu's ``unacked`` hash.
_PER_DELIVERY = frozenset(
    {
        "delivery_tag",
        "delivery_info",
        "body_encoding",
        "content_type",
        "content_encoding",
        "headers",
        "application_headers",
        "cluster_id",
    }
)

#: Say that a message came back; a new message has not.
STALE_HEADERS = frozenset(
    {
        "redelivered",
        "x-delivery-count",
        "x-death",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
        "x-acquired-count",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One message, decoded no further than the transport did."""

    body: bytes
    body_compressed: bool
    content_type: str | None
    content_encoding: str | None
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    exchange: str
    routing_key: str
    delivery_tag: str
    redelivered: bool
    queue: str = ""
    """Queue it was consumed from, as far as the consumer can tell."""

    fence: int | None = None
    """Number of this delivery; Redis delivery gives one."""


#: One message as a plain tuple of what it arrived with (see ``pack``).
Packed: TypeAlias = "tuple[Any, ...]"


def pack(message: Message, queue: str = "") -> Packed:
    """Take *message* as it arrived, quickly: this is done for every task, ``unpack`` only for a few.

    Holds the message's own objects, no copies, so that a pickle which holds them already
    (the pool's) does not grow by them.
    """
    return (
        message.body,
        bool(message.errors),
        message.content_type,
        message.content_encoding,
        message.headers,
        message.properties,
        message.delivery_info,
        message.delivery_tag,
        queue,
    )


def unpack(packed: Packed) -> Wire:
    """The message that was packed. Never raises: it is used on messages that are broken."""
    body, errors, content_type, content_encoding, headers, properties, info, tag, queue = packed
    info = info if isinstance(info, dict) else {}
    headers = headers if isinstance(headers, dict) else {}
    properties = properties if isinstance(properties, dict) else {}
    return Wire(
        body=body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body or b""),
        # kombu decompresses on arrival; when it could not, the error is noted and the body left.
        body_compressed=bool(errors) and "compression" in headers,
        content_type=content_type,
        content_encoding=content_encoding,
        headers=dict(headers),
        properties={name: value for name, value in properties.items() if name not in _PER_DELIVERY},
        exchange=str(info.get("exchange") or ""),
        routing_key=str(info.get("routing_key") or ""),
        delivery_tag=str(tag),
        redelivered=bool(info.get("redelivered") or headers.get("redelivered")),
        queue=queue,
        fence=info.get("fence"),
    )


def capture(message: Message, queue: str = "") -> Wire:
    """Take *message* as it arrived. Never raises."""
    return unpack(pack(message, queue))


def source_queue(info: Mapping[str, Any], *, tags: Mapping[Any, Any], queues: Mapping[str, Any]) -> str:
    """The queue a message was consumed from: where its next start, its retry and its redrive have to go.

    AMQP says it by consumer tag. kombu's virtual transports, Redis among them, say only
    exchange and routing key, so the bindings are asked which queue those reach.

    Args:
        info: The message's ``delivery_info``.

        tags: The consumer's tag for each queue.

        queues: The queues this worker consumes, by name (``kombu.Queue``).

    Returns:
        Its name; the routing key if no queue of this worker fits.
    """
    tag = info.get("consumer_tag")
    if tag is not None:
        for queue, active in tags.items():
            if active == tag:
                return str(queue)
    exchange, key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
    if exchange:
        for name, queue in queues.items():
            if _reached(queue, exchange, key):
                return str(name)
    if key in queues:
        return key
    return str(next(iter(queues))) if len(queues) == 1 else key


def _reached(queue: Any, exchange: str, key: str) -> bool:
    """Does a message that was sent to *exchange* with *key* reach *queue*?"""
    bindings = [(queue.exchange, queue.routing_key), *((one.exchange, one.routing_key) for one in queue.bindings or ())]
    for bound, wanted in bindings:
        if bound is not None and bound.name == exchange and _fits(str(bound.type), key, str(wanted or "")):
            return True
    return False


def _fits(kind: str, key: str, wanted: str) -> bool:
    if kind == "topic":
        words = ({"*": r"[^.]+", "#": ".*"}.get(word, re.escape(word)) for word in wanted.split("."))
        return re.fullmatch(r"\.".join(words), key) is not None
    return kind == "fanout" or key == wanted


def send(
    app: Celery,
    *,
    body: bytes,
    body_compressed: bool,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    exchange: str,
    routing_key: str,
    producer: Producer | None = None,
) -> None:
    """Publish the message again: same body bytes, content type, headers and properties.

    The caller has already changed what it wants changed in *headers* and
    *properties*; stale redelivery headers and per-delivery properties are
    dropped here. With the default exchange (``""``) *routing_key* names the queue.

    Raises:
        kombu.exceptions.OperationalError: The broker did not take it, after ``task_publish_retry_policy``.
    """
    out = {name: value for name, value in headers.items() if name not in STALE_HEADERS}
    # The body was decompressed on arrival and the header stayed: kombu compresses again and
    # writes the header itself. A body that is still compressed goes as it is, header and all.
    compression = None if body_compressed else out.pop("compression", None)
    kept = {name: value for name, value in properties.items() if name not in _PER_DELIVERY and value is not None}
    if "timestamp" in kept:
        kept["timestamp"] = int(time.time())  # of this publish: the age of a queue goes by it
    expiration = _seconds(kept.pop("expiration", None))
    with app.producer_or_acquire(producer) as ready:
        ready.publish(
            body,
            expiration=expiration,
            exchange=exchange,
            routing_key=routing_key,
            content_type=content_type or "application/octet-stream",
            content_encoding=content_encoding or "binary",
            headers=out,
            compression=compression,
            retry=True,
            retry_policy=dict(app.conf.task_publish_retry_policy),
            **kept,
        )


def _seconds(expiration: Any) -> float | None:
    """A message's time to live. On the wire it is a string of milliseconds; kombu takes seconds."""
    try:
        return max(0.0, float(expiration) / 1000.0)
    except (TypeError, ValueError):
        return None
