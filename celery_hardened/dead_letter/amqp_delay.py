"""Tasks with a countdown wait in RabbitMQ, not in a worker.

A worker holds what is not due yet unacked, and fetches more in its stead by
raising its prefetch count. On a quorum queue it cannot: the count is static, so
as many delayed tasks as it may prefetch (retries, say) stop it until the first
is due. Celery's native delayed delivery, exchanges and queues that are the bits
of the delay, avoids this, but not for direct exchanges, which are its default.
Here its delivery exchange is bound to the queue itself, so it works for them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from amqp.exceptions import NotFound
from kombu.abstract import MaybeChannelBound
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_LEVEL,
    MAX_NUMBER_OF_BITS_TO_USE,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from celery_hardened.dead_letter.amqp_queue import another_channel

#: Where a delayed message is published to.
DELAY_EXCHANGE: str = level_name(MAX_LEVEL)

_DELAY_EXCHANGES = frozenset({CELERY_DELAYED_DELIVERY_EXCHANGE, *map(level_name, range(MAX_LEVEL + 1))})

#: Seconds between a countdown and its publish. Without them a countdown of 1 would be none.
_ON_ITS_WAY = 0.1

_KEY_MAX = 255
_LONGEST = 2**MAX_NUMBER_OF_BITS_TO_USE - 1


def delay_key(queue: str, seconds: float) -> str | None:
    """Routing key that brings a message to *queue* after *seconds*, whole ones: for the rest its worker holds it.

    ``None``: at once, because it is due within a second, or too late, or the queue's name
    is one the topic exchange would misread.
    """
    whole = int(min(seconds + _ON_ITS_WAY, _LONGEST + 1))
    if not 1 <= whole <= _LONGEST or {"*", "#"} & set(queue.split(".")):
        return None
    key = f"{'.'.join(f'{whole:0{MAX_NUMBER_OF_BITS_TO_USE}b}')}.{queue}"
    return key if len(key.encode()) <= _KEY_MAX else None


def delayed_queue(exchange: object, routing_key: object) -> str | None:
    """The queue for which a message came delayed; ``None`` if it did not come so.

    It says the exchange it was last dead-lettered to: the one below its lowest bit.
    """
    if not isinstance(exchange, str) or exchange not in _DELAY_EXCHANGES or not isinstance(routing_key, str):
        return None
    *bits, queue = routing_key.split(".", MAX_NUMBER_OF_BITS_TO_USE)
    return queue if len(bits) == MAX_NUMBER_OF_BITS_TO_USE else None


def seconds_until_due(message: Any, now: float) -> float:
    """Seconds until the task of an unsent message (Celery's ``task_message``) is due; 0 if it is, or does not say."""
    says = message.headers if "task" in message.headers else message.body
    eta = says.get("eta") if isinstance(says, Mapping) else None
    try:
        due = datetime.fromisoformat(eta) if eta else None
    except (TypeError, ValueError):
        return 0.0  # the worker reads it, or says what is wrong with it
    # Without a time zone it means what the worker's configuration says: its to interpret.
    return max(0.0, due.timestamp() - now) if due is not None and due.tzinfo else 0.0


class DelaysFor(MaybeChannelBound):
    """All that has to be there before a message for the queue called *name* is delayed.

    Given to a publish in ``declare``, so that kombu makes it once for each connection,
    and again after a reconnect.
    """

    attrs = (("name", None), ("queue_type", None))
    can_cache_declaration = True
    name: str
    queue_type: str

    def __hash__(self) -> int:
        return hash(f"delays|{self.name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DelaysFor) and self.name == other.name

    def declare(self, nowait: bool = False, channel: Any = None) -> None:  # noqa: ARG002 - kombu's signature
        on = channel or self.channel
        if not delays_exist(on):
            with another_channel(on) as aside:
                # It would open a channel and leave it open.
                opened: Any = SimpleNamespace(channel=lambda: aside)
                declare_native_delayed_delivery_exchanges_and_queues(opened, self.queue_type)
        bind_delays(on, self.name)


def delays_exist(channel: Any) -> bool:
    """Are the exchanges and queues there? The one that is declared last is asked for."""
    with another_channel(channel) as aside:
        try:
            aside.exchange_declare(CELERY_DELAYED_DELIVERY_EXCHANGE, "topic", passive=True)
        except NotFound:
            return False
    return True


def bind_delays(channel: Any, queue: str) -> None:
    """Let delayed messages for *queue* arrive there."""
    # What is done last when they are made: whoever was at it may have been killed just before.
    last_bit = ".".join(["*"] * MAX_LEVEL + ["0", "#"])
    channel.exchange_bind(CELERY_DELAYED_DELIVERY_EXCHANGE, level_name(0), last_bit)
    # One star a bit, not "#": that would also match every queue whose name ends like this one's.
    channel.queue_bind(queue, CELERY_DELAYED_DELIVERY_EXCHANGE, ".".join(["*"] * MAX_NUMBER_OF_BITS_TO_USE + [queue]))
