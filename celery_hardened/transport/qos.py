"""kombu's record of what a channel has delivered, with leases beneath it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from celery_hardened.transport.names import is_ours

if TYPE_CHECKING:
    _QoS = kombu_redis.QoS
else:
    _QoS = object  # a mix-in: what it is composed with is kombu's, or a user's own

logger = logging.getLogger("celery_hardened.transport")


class HardenedQoS(_QoS):
    """Deliveries of a fetch are leased already, and end through ``Leases``; others as in kombu."""

    channel: Any

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._rides: set[str] = set()

    def let_ack_ride(self, delivery_tag: str) -> None:
        """The ack of this delivery may wait for the next fetch, should one be due at once."""
        self._rides.add(delivery_tag)

    def append(self, message: Any, delivery_tag: str) -> None:
        if is_ours(delivery_tag):
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if not is_ours(delivery_tag):
            super().ack(delivery_tag)
            return
        virtual.QoS.ack(self, delivery_tag)
        ride = delivery_tag in self._rides
        self._rides.discard(delivery_tag)
        self.channel.leases.ack(delivery_tag, ride=ride and self.channel.takes_acks())

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not is_ours(delivery_tag):
            super().reject(delivery_tag, requeue)
        elif requeue:
            virtual.QoS.ack(self, delivery_tag)
            self._rides.discard(delivery_tag)
            self.channel.leases.give_back([delivery_tag], last=True)
        else:
            self.ack(delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """What nobody started goes back at once, in its old order. What was started is still leased."""
        for delivery_tag in [one for one in list(self._delivered) if is_ours(one)]:
            self._delivered.pop(delivery_tag, None)
        if self.channel.do_restore:
            # Only if it ever took a message: a closed connection has no address to find the leases by.
            leases = self.channel.__dict__.get("leases")
            returned = leases.give_back_of(self.channel.consumer) if leases is not None else 0
            if returned:
                logger.info("%s messages that were not started went back to their queues", returned)
        super().restore_unacked_once(stderr)

    def restore_visible(self, *args: Any, **options: Any) -> None:
        """Nothing: the sweep does it, for kombu's own deliveries too."""
