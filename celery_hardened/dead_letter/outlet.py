"""Where redriven messages go out: one connection of its own, and no publish is ever repeated by itself.

kombu would publish again when an answer is lost, and Celery's own publishing
relies on it. For a redrive that would be two messages with one token, which no
consumer can tell from one message and its redelivery: both would run. So a
publish is tried once, and the caller takes the letter again under a new token.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from celery import Celery
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from kombu.messaging import Producer

from celery_hardened import wire
from celery_hardened.dead_letter.resend import Outgoing

#: AMQP's reply code for a queue that does not exist.
_NOT_FOUND = 404


class PublishError(Exception):
    """A message was not sent, or perhaps was (``__cause__`` tells more).

    ``of_broker`` is true if the broker or the way to it failed, and false if
    something is wrong with this one message.
    """

    def __init__(self, problem: str, of_broker: bool) -> None:
        super().__init__(problem, of_broker)
        self.problem = problem
        self.of_broker = of_broker

    def __str__(self) -> str:
        return self.problem


class _OneTryProducer(Producer):
    def publish(self, *args: Any, **options: Any) -> Any:
        return super().publish(*args, **{**options, "retry": False})  # type: ignore[no-untyped-call]


class Outlet:
    """A context manager; connects when it is first needed, and again after a failure."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None
        self._producer: _OneTryProducer | None = None
        self._queues: dict[str, bool] = {}

    def __enter__(self) -> Outlet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, message: Outgoing) -> None:
        """Send *message*, trying once.

        Raises:
            PublishError: See there. The next publish uses a new connection.
        """
        # Not asdict(), which copies body and headers deeply.
        parts: dict[str, Any] = {field.name: getattr(message, field.name) for field in fields(message)}
        try:
            wire.send(self._app, producer=self._open(), **parts)
        except Exception as problem:
            # kombu counts KeyError among the errors of a Redis connection; here it is the message's.
            of_broker = isinstance(problem, self._broker_errors()) and not isinstance(problem, LookupError)
            self.close()
            raise PublishError(f"{type(problem).__name__}: {problem}", of_broker) from problem

    def has_queue(self, queue: str) -> bool:
        """Does the broker have *queue*? AMQP drops what is sent to a queue that does not exist;
        other brokers make it on the way, so for them the answer is yes."""
        if queue not in self._queues:
            self._queues[queue] = not _is_amqp(self._app.connection_for_write()) or self._declared(queue)
        return self._queues[queue]

    def close(self) -> None:
        """Give the connection up."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.release()

    def _open(self) -> _OneTryProducer:
        if self._producer is None:
            self._connection = self._connect()
            self._producer = _OneTryProducer(self._connection)  # type: ignore[no-untyped-call]
        return self._producer

    def _connect(self) -> Connection:
        connection: Connection = self._app.connection_for_write()
        options = dict(connection.transport_options or {})
        if "retry_on_timeout" in options:
            options["retry_on_timeout"] = False  # redis-py's own way to publish twice
        if _is_amqp(connection):
            # Without confirms, a message that the broker lost would count as sent.
            options["confirm_publish"] = True
        connection.transport_options = options
        return connection

    def _broker_errors(self) -> tuple[type[BaseException], ...]:
        connection: Any = self._connection or self._app.connection_for_write()
        return (OperationalError, OSError, *connection.connection_errors, *connection.channel_errors)

    def _declared(self, queue: str) -> bool:
        with self._connect() as connection:
            try:
                connection.default_channel.queue_declare(queue, passive=True)
            except connection.channel_errors as problem:
                return getattr(problem, "code", None) != _NOT_FOUND
            except (OperationalError, OSError, *connection.connection_errors):
                return True  # not known; publishing will tell
        return True


def _is_amqp(connection: Any) -> bool:
    return getattr(connection.get_transport_cls(), "driver_type", "") == "amqp"
