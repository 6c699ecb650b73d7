"""What RabbitMQ writes into a message it takes out of a queue, and what that means for us. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from celery_hardened.dead_letter.letter import Reason

#: Exchange of Celery's native delayed delivery: its routing keys say how long, not where to.
_DELAYED = "celery_delayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDeath:
    """The last time the broker took a message out of one queue."""

    reason: str
    """``rejected``, ``expired``, ``maxlen`` or ``delivery_limit``; ``""`` if it does not say."""

    exchange: str = ""
    routing_key: str = ""
    """How the message had been published to the queue."""

    at: float | None = None
    """Seconds since the epoch, the broker's clock."""


def broker_death(headers: Mapping[str, Any], queue: str) -> BrokerDeath:
    """Read from *headers* how a message died in *queue*. Never raises.

    ``x-first-death-queue`` is not it: a task with a countdown may have died in a
    delay queue first, which is how it was delayed.
    """
    entries = headers.get("x-death")
    for entry in entries if isinstance(entries, (list, tuple)) else ():  # newest first
        if isinstance(entry, Mapping) and entry.get("queue") == queue:
            keys = entry.get("routing-keys")
            exchange, key = _text(entry.get("exchange")), _text(keys[0]) if isinstance(keys, list) and keys else ""
            if exchange.startswith(_DELAYED) or not key:
                exchange, key = "", queue
            return BrokerDeath(
                reason=_text(entry.get("reason")), exchange=exchange, routing_key=key, at=_epoch(entry.get("time"))
            )
    return BrokerDeath(reason="", routing_key=queue)


GoBack: TypeAlias = Literal["go back"]


def verdict(death: BrokerDeath, *, is_task: bool, deaths: int) -> Reason | GoBack:
    """Decide what becomes of a message out of a dead letter queue.

    The delivery limit is only a backstop: workers that shut down return messages too,
    and that counts. Without a recorded death of its own the message has done nothing.
    """
    if not is_task:
        return "malformed"
    if death.reason == "delivery_limit":
        return "poison" if deaths > 0 else "go back"
    return "expired_horizon" if death.reason == "expired" else "rejected"


def sentence(death: BrokerDeath, queue: str) -> str:
    """Say what happened, for people."""
    match death.reason:
        case "rejected":
            return f"a consumer rejected it and RabbitMQ took it out of queue {queue!r}"
        case "expired":
            return f"it expired in queue {queue!r} before a worker took it (expires, or the queue's message TTL)"
        case "maxlen":
            return f"queue {queue!r} was at its maximum length, so RabbitMQ took it out: it never reached a worker"
        case "delivery_limit":
            return f"it came back to queue {queue!r} as often as the queue's delivery limit allows"
        case "":
            return f"it was in the dead letter queue of {queue!r}, and nothing says how it came there"
        case other:
            return f"RabbitMQ took it out of queue {queue!r}: {other}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _epoch(value: object) -> float | None:
    if not isinstance(value, datetime):
        return None
    # The AMQP client hands over UTC without saying so.
    return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
