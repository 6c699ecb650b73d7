"""``hardened_amqp_queues = "quorum"``: what it installs into an app, for producers and workers alike."""

from __future__ import annotations

import logging
import time
from typing import Any

from amqp.exceptions import ChannelError
from celery import Celery
from celery.utils.imports import symbol_by_name
from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE
from kombu import Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError
from kombu.transport.pyamqp import Transport

from celery_hardened.dead_letter.amqp_delay import (
    DELAY_EXCHANGE,
    DelaysFor,
    delay_key,
    delayed_queue,
    seconds_until_due,
)
from celery_hardened.dead_letter.amqp_queue import LookFirst, look_first
from celery_hardened.dead_letter.amqp_worker import LookAtQueues
from celery_hardened.settings import Settings

logger = logging.getLogger("celery_hardened.dead_letter")


def use_quorum_queues(app: Celery, settings: Settings) -> None:
    """Have new queues of *app* declared as quorum queues, with a limit and a dead letter queue.

    Composed with the app's own ``amqp`` and ``queues_cls``. It connects to nothing, does
    nothing on a broker other than AMQP, and nothing at all unless *settings* say so.
    """
    if settings.amqp_queues != "quorum":
        return
    limit = settings.amqp_delivery_limit
    app.steps["consumer"].add(LookAtQueues)
    built: Any = app.__dict__.get("amqp")
    if built is None:
        app.amqp_cls = _amqp(symbol_by_name(app.amqp_cls), limit)
        return
    own = built.__dict__.pop("queues_cls", None)
    built.__class__ = _amqp(type(built), limit)
    if own is not None:
        built.queues_cls = _queues(own, limit)
    # Made from what was: to be made again.
    for name in ("send_task_message", "default_queue"):
        built.__dict__.pop(name, None)
    if "queues" in built.__dict__:
        _adopt(built.queues, limit)


def _amqp(base: Any, limit: int) -> Any:
    class AMQP(base):  # type: ignore[misc]
        queues_cls = _queues(base.queues_cls, limit)

        def _create_task_sender(self) -> Any:
            return _Sender(self, super()._create_task_sender(), limit)

    AMQP.__qualname__ = AMQP.__name__ = base.__name__
    return AMQP


class _Sender:
    """Celery's ``send_task_message``, with queues that look first and delays kept by the broker."""

    def __init__(self, amqp: Any, send: Any, limit: int) -> None:
        self._amqp = amqp
        self._send = send
        self._limit = limit
        self._delays_refused = False

    def __call__(self, producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
        self._adopt_queues(options)
        delayed = self._delayed(producer, message, options) if not args else None
        if delayed is not None:
            try:
                return self._send(producer, name, message, **{**options, **delayed})
            except OperationalError as problem:
                if not isinstance(problem.__cause__, ChannelError):
                    raise
                # Nothing was sent. Held by its worker, the task comes in time all the same.
                self._delays_refused = True
                logger.error("RabbitMQ cannot delay tasks (%s); workers hold them until they are due", problem)
        return self._send(producer, name, message, *args, **options)

    def _adopt_queues(self, options: dict[str, Any]) -> None:
        # A queue given as an object never was in app.amqp.queues.
        if isinstance(options.get("queue"), Queue):
            options["queue"] = _adopted(options["queue"], self._limit)
        if options.get("declare"):
            options["declare"] = [
                _adopted(entity, self._limit) if isinstance(entity, Queue) else entity for entity in options["declare"]
            ]
        # A retry repeats how its message came. By the delivery exchange it would come at once.
        came_for = delayed_queue(options.get("exchange"), options.get("routing_key"))
        if came_for is not None:
            options.update(exchange=None, routing_key=None, queue=self._amqp.queues[came_for])

    def _delayed(self, producer: Any, message: Any, options: dict[str, Any]) -> dict[str, Any] | None:
        """The options with which *message* waits in the broker, or ``None`` if it shall not."""
        seconds = seconds_until_due(message, time.time())
        if not seconds or self._delays_refused or options.get("exchange"):
            return None
        queue = options.get("queue") or self._amqp.default_queue
        if isinstance(queue, str):
            queue = self._amqp.queues[queue]
        # By a topic or fanout exchange it may be meant for several queues.
        direct = not queue.exchange or queue.exchange.type == "direct"
        key = delay_key(queue.name, seconds) if isinstance(queue, LookFirst) and direct else None
        if key is None or not isinstance(producer.connection.transport, Transport):
            return None
        delays = DelaysFor(name=queue.name, queue_type=self._amqp.app.conf.broker_native_delayed_delivery_queue_type)
        declare = [*(options.get("declare") or ()), queue, delays]
        return {"queue": queue, "exchange": DELAY_EXCHANGE, "routing_key": key, "declare": declare}


def _queues(base: Any, limit: int) -> Any:
    """*base*, a mapping of queues, with every queue that enters it made to look first."""

    class Queues(base):  # type: ignore[misc]
        def __setitem__(self, name: str, queue: Queue) -> None:
            super().__setitem__(name, _adopted(queue, limit))

        def _add(self, queue: Queue) -> Queue:
            added: Queue = super()._add(_adopted(queue, limit))
            return added

    Queues.__qualname__ = Queues.__name__ = base.__name__
    return Queues


def _adopt(queues: Any, limit: int) -> None:
    """The same for a mapping that is in use already."""
    queues.__class__ = _queues(type(queues), limit)
    for name, queue in list(queues.items()):
        queues[name] = queue
    consumed = queues.consume_from
    for name in list(consumed):
        consumed[name] = queues[name]


def _adopted(queue: Queue, limit: int) -> Queue:
    # A worker's direct queue lives and dies with the name of its host: two quorum queues
    # for each would be left behind.
    if isinstance(queue, Broadcast) or queue.exchange == WORKER_DIRECT_EXCHANGE:
        return queue
    return look_first(queue, delivery_limit=limit)
