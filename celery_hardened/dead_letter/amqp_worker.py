"""A worker looks at its queues before it consumes them: what kind they are decides its prefetch.

RabbitMQ refuses a consumer of a quorum queue on a channel with a global prefetch
limit, which is what Celery sets for classic ones. Celery goes by the configuration
to tell them apart; here the queue decides, for it may be older than that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from amqp.exceptions import ChannelError
from celery import bootsteps
from celery.worker.consumer.tasks import Tasks
from kombu.transport.pyamqp import Channel

from celery_hardened.dead_letter.amqp_delay import bind_delays, delays_exist
from celery_hardened.dead_letter.amqp_policy import dead_letter_queue, has_own_exchange, policy_command, why_classic
from celery_hardened.dead_letter.amqp_queue import (
    LookFirst,
    another_channel,
    bind_dead_letter_queue,
    declare_dead_letter_queue,
    made_by_us,
    may_be_quorum,
    prepared_arguments,
)

logger = logging.getLogger("celery_hardened.dead_letter")


class LookAtQueues(bootsteps.StartStopStep):  # type: ignore[misc]
    """Declares the consumed queues before Celery chooses its prefetch, and says what it found."""

    requires = (Tasks,)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self._told: set[str] = set()

    def create(self, c: Any) -> None:
        # Celery has no step between the connection and this choice, and no order among
        # steps that do not require each other: so the choice itself is wrapped.
        for step in c.steps:
            if isinstance(step, Tasks):
                step.qos_global = partial(self._qos_global, step.qos_global)

    def _qos_global(self, as_configured: Callable[[Any], bool], c: Any) -> bool:
        """May one prefetch limit hold for all queues of the channel?"""
        channel = c.connection.default_channel
        if isinstance(channel, Channel) and self._any_quorum(c, channel):
            logger.info("a consumed queue is a quorum queue: the prefetch count is static")
            return False
        return as_configured(c)

    def _any_quorum(self, c: Any, channel: Any) -> bool:
        consumed = {
            name: queue
            for name, queue in c.app.amqp.queues.consume_from.items()
            if isinstance(queue, LookFirst) and may_be_quorum(queue)
        }
        for queue in consumed.values():
            queue.bind(channel).declare()  # type: ignore[no-untyped-call]
        ours = made_by_us(channel, [queue.name for queue in consumed.values()])
        for queue in consumed.values():
            arguments = prepared_arguments(queue, channel)
            if has_own_exchange(arguments):
                continue
            if queue.name in ours:
                self._offer(channel, queue.name, bind_dead_letter_queue)
            elif self._offer(channel, queue.name, declare_dead_letter_queue):
                self._tell(queue.name, why_classic(arguments), c.connection.virtual_host or "/")
        if delays_exist(channel):
            for queue in consumed.values():
                # A queue that was deleted and made anew has lost it, and tasks wait for it.
                bind_delays(channel, queue.name)
        return bool(ours)

    def _offer(self, channel: Any, queue: str, make: Callable[[Any, str], None]) -> bool:
        """Have the dead letter queue there. Not being allowed to make it must not stop the worker."""
        try:
            with another_channel(channel) as aside:
                make(aside, queue)
        except ChannelError as refusal:
            logger.error("there is no %s: %s", dead_letter_queue(queue), refusal)
            return False
        return True

    def _tell(self, queue: str, classic: str | None, vhost: str) -> None:
        if queue in self._told:
            return
        self._told.add(queue)
        why = f"is declared with {classic}, which no quorum queue can have, and" if classic else "existed before and"
        logger.warning(
            "queue %r %s stays as it is. What RabbitMQ itself rejects or expires there is dropped, unless a policy "
            "sends it to %r, which this worker drains into the dead letters. If you have not set one yet: %s",
            queue,
            why,
            dead_letter_queue(queue),
            policy_command(queue, vhost),
        )
