"""``hardened_amqp_queues = "quorum"``: what it installs into an app, for producers and workers alike."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.utils.imports import symbol_by_name
from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE
from kombu import Queue
from kombu.common import Broadcast

from celery_hardened.dead_letter.amqp_queue import look_first
from celery_hardened.dead_letter.amqp_worker import LookAtQueues
from celery_hardened.settings import Settings


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
            sender = super()._create_task_sender()

            def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
                # A queue given as an object never was in app.amqp.queues.
                if isinstance(options.get("queue"), Queue):
                    options["queue"] = _adopted(options["queue"], limit)
                if options.get("declare"):
                    options["declare"] = [
                        _adopted(entity, limit) if isinstance(entity, Queue) else entity
                        for entity in options["declare"]
                    ]
                return sender(producer, name, message, *args, **options)

            return send_task_message

    AMQP.__qualname__ = AMQP.__name__ = base.__name__
    return AMQP


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
