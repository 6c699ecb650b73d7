"""What waits in an app's queue on ``memory://``."""

from __future__ import annotations

from typing import Any

from celery import Celery


def take_queued(app: Celery, name: str | None = None) -> list[Any]:
    """Take all messages out of a queue of *app*, the default one without *name*; first in first."""
    taken = []
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        queue = app.amqp.queues[name or app.conf.task_default_queue](channel)
        queue.declare()
        while (message := queue.get(no_ack=True)) is not None:
            taken.append(message)
    return taken


def queued_ids(app: Celery) -> list[str]:
    """Task ids of all messages, which are taken out."""
    return [message.headers["id"] for message in take_queued(app)]
