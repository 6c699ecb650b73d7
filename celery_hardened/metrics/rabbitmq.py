"""Queues of RabbitMQ, by passive declare: how many messages are ready, and how many consumers there are.

How many are unacknowledged, and how old the oldest is, cannot be asked that way. RabbitMQ's own Prometheus plugin
tells both; the age is its ``rabbitmq_queue_head_message_timestamp``, since our producers give messages a timestamp.
Other brokers of kombu that keep queues are asked in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kombu import Connection

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.metrics.queue_reading import BrokerReading, QueueReading

logger = logging.getLogger("celery_hardened.metrics")


class DeclaredQueues:
    """A ``QueueSource``.

    Args:
        connect: Makes a connection, which has not connected yet. Its timeouts bound ``read``.
        dead_letter_queue: Name of a queue's dead letter queue; ``None``: there are none.
        delay_queues: Queues in which the broker keeps what is not due yet.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        dead_letter_queue: Callable[[str], str] | None = None,
        delay_queues: Sequence[str] = (),
    ) -> None:
        self._connect = connect
        self._dead_letter_queue = dead_letter_queue
        self._delay_queues = tuple(delay_queues)
        self._connection: Connection | None = None
        self._channel: Any = None
        self._refused: set[str] = set()

    def read(self, queues: Sequence[str]) -> BrokerReading:
        found: dict[str, QueueReading] = {}
        exists: dict[str, bool] = {}
        dead: dict[str, int] = {}
        with self._asking() as connection:
            tells_consumers = connection.transport.driver_type == "amqp"
            for queue in queues:
                declared = self._look(connection, queue)
                if declared is not None:
                    exists[queue] = declared != ()
                if declared:
                    _, messages, consumers = declared
                    found[queue] = QueueReading(waiting=messages, consumers=consumers if tells_consumers else None)
                if declared and self._dead_letter_queue is not None:
                    beside = self._look(connection, self._dead_letter_queue(queue))
                    if beside:
                        dead[queue] = beside[1]
            return BrokerReading(
                queues=found, exists=exists, dead_letter_queues=dead, delayed=self._delayed(connection)
            )

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.release()

    @contextmanager
    def _asking(self) -> Iterator[Connection]:
        """A connection, and what it takes when that is lost."""
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        try:
            if not connection.connected:
                self._channel = None
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            yield connection
        except (OSError, *connection.connection_errors, *connection.channel_errors) as problem:
            self.close()
            raise StoreUnavailableError(
                "counting queues", f"{type(problem).__name__}: {problem}", "the broker"
            ) from problem

    def _look(self, connection: Connection, queue: str) -> Any:
        """Name, messages and consumers of *queue*; ``()``: there is none; ``None``: it may not be seen."""
        if self._channel is None:
            self._channel = connection.channel()
        try:
            found = self._channel.queue_declare(queue, passive=True)
        except connection.channel_errors as refusal:
            # That was the end of the channel, and of nothing else.
            channel, self._channel = self._channel, None
            with suppress(Exception):
                channel.close()
            if str(getattr(refusal, "reply_code", None)) == "404":
                return ()
            if queue not in self._refused:
                self._refused.add(queue)
                logger.warning("queue %r cannot be counted: %s", queue, refusal)
            return None
        return tuple(found)

    def _delayed(self, connection: Connection) -> int | None:
        total = None
        for name in self._delay_queues:
            found = self._look(connection, name)
            if not found:
                break  # they are made together: without the first there are none, and each look costs a channel
            total = (total or 0) + int(found[1])
        return total
