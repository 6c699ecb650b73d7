"""The message of a schedule's fire, to a broker other than the Redis that keeps the records."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery

from celery_hardened.beat.schedule import Schedule
from celery_hardened.pipeline.beat_send import send
from celery_hardened.pipeline.publish import FireMarks

logger = logging.getLogger("celery_hardened.beat")

#: Seconds that the broker may take to confirm a message.
CONFIRM_TIMEOUT = 5.0


class BrokerMessages:
    """Publishes on one connection of its own, which is made anew after any trouble. One thread at a time.

    kombu's own retries are left out: a beat has its own, and must not stand still for them.
    """

    def __init__(self, app: Celery) -> None:
        self._app: Any = app
        self._producer: Any = None

    def publish(self, schedule: Schedule, *, task_id: str, fire: FireMarks) -> bool:
        """Publish *schedule*'s task under *task_id* by Celery's own path, and wait for the broker's word.

        Returns:
            ``False``: the task's own ``apply_async`` or ``@deduplicate`` decided that there is nothing to send.

        Raises:
            Exception: Whatever the path raised; ``dedup.sent.nothing_was_sent`` tells how certain it is.
        """
        try:
            result = send(
                self._app,
                schedule,
                task_id=task_id,
                fire=fire,
                producer=self._open(),
                retry=False,
                timeout=CONFIRM_TIMEOUT,
                confirm_timeout=CONFIRM_TIMEOUT,
            )
        except Exception:
            self.close()
            raise
        return result is not None and str(result.id) == task_id

    def _open(self) -> Any:
        if self._producer is None:
            connection = self._app.connection_for_write()
            # Not for long, without a pause; a channel by itself would try for as long as it takes.
            connection.ensure_connection(max_retries=1, interval_start=0, reraise_as_library_errors=False)
            self._producer = self._app.amqp.Producer(connection, auto_declare=False)
        return self._producer

    def connects(self) -> bool:
        """Does the broker take a new connection?"""
        try:
            self._open()
        except Exception as problem:  # noqa: BLE001 - whatever it is, it does not
            logger.debug("no connection to the broker: %r", problem)
            return False
        return True

    def close(self) -> None:
        """Let go of the connection. The next message makes a new one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.collect(0.1)
            except Exception as problem:  # noqa: BLE001 - it is of no use any more
                logger.debug("a connection to the broker did not close in order: %r", problem)
