"""A message goes back into the queue the broker took it from, and surely is there."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_hardened.dead_letter.amqp_queue import look
from celery_hardened.wire import Wire, send

#: Seconds the broker has to say that it has the message.
_TIMEOUT = 10


class PutBack:
    """Publishes on a connection of its own, with confirms: the original is acked next, and
    two connections have no order, so a plain publish could be lost behind that ack."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Any = None

    def __call__(self, wire: Wire, queue: str) -> bool:
        """Put *wire* into *queue* as a new message. ``False``: there is no such queue.

        Raises:
            kombu.exceptions.OperationalError: It may or may not be there.
        """
        if self._connection is None:
            options = {"confirm_publish": True, "read_timeout": _TIMEOUT, "write_timeout": _TIMEOUT}
            self._connection = self._app.connection_for_write(transport_options=options)
        try:
            if look(self._connection.default_channel, queue) is None:
                return False
            send(
                self._app,
                body=wire.body,
                body_compressed=wire.body_compressed,
                content_type=wire.content_type,
                content_encoding=wire.content_encoding,
                headers=wire.headers,
                properties=wire.properties,
                exchange="",
                routing_key=queue,
                producer=self._connection.Producer(),
            )
        except BaseException:
            self.close()
            raise
        return True

    def close(self) -> None:
        """Disconnect; the next message connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
