"""How the queues of an app's broker are read, whichever broker it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery_hardened.metrics.queue_reading import QueueSource
from celery_hardened.transport.names import DELAYED

if TYPE_CHECKING:
    from kombu.connection import Connection

    from celery_hardened.hardening import Hardening

#: Seconds that RabbitMQ may take for one answer.
PATIENCE: Final = 5.0


def source_of(hardening: Hardening) -> QueueSource:
    """What reads the broker that workers of this app consume from. Connects to nothing yet."""
    connection: Connection = hardening.app.connection_for_read()
    transport: Any = connection.get_transport_cls()
    if getattr(transport, "driver_type", "") == "redis":
        return _redis(hardening, connection, transport)
    return _declared(hardening)


def _redis(hardening: Hardening, connection: Connection, transport: Any) -> QueueSource:
    from celery_hardened.metrics.queues import RedisLayout, RedisQueues
    from celery_hardened.redis_connection import client_of

    options = connection.transport_options or {}

    def option(name: str) -> Any:
        return options.get(name, getattr(transport.Channel, name))

    prefix = option("global_keyprefix")
    layout = RedisLayout(
        prefix=prefix,
        separator=option("sep"),
        steps=tuple(sorted(option("priority_steps"))),
        index=prefix + option("unacked_index_key"),
        lease=hardening.settings.lease,
        delayed=DELAYED,
    )
    return RedisQueues(client_of(connection, tries=2), layout)


def _declared(hardening: Hardening) -> QueueSource:
    from celery_hardened.metrics.rabbitmq import DeclaredQueues

    app = hardening.app

    def connect() -> Connection:
        # Without heartbeats: nobody would send them between two readings.
        made: Connection = app.connection_for_read(
            connect_timeout=PATIENCE,
            heartbeat=0,
            transport_options={"read_timeout": PATIENCE, "write_timeout": PATIENCE},
        )
        return made

    if hardening.settings.amqp_queues is None:
        return DeclaredQueues(connect)
    from kombu.transport.native_delayed_delivery import MAX_LEVEL, level_name

    from celery_hardened.dead_letter.amqp_policy import dead_letter_queue

    delays = [level_name(level) for level in range(MAX_LEVEL, -1, -1)]
    return DeclaredQueues(connect, dead_letter_queue=dead_letter_queue, delay_queues=delays)
