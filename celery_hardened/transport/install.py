"""Put our delivery under the connections of one app, and of no other in the process."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kombu.utils.collections import HashedSeq

if TYPE_CHECKING:
    from celery import Celery

    from celery_hardened.transport.delivery import Delivery


def install(app: Celery, delivery: Callable[[], Delivery | None]) -> None:
    """Let *app* connect through our transport wherever kombu would use its Redis transport.

    ``app.amqp`` makes every connection of an app, so its ``Connection`` class is replaced.
    Failover lists, clones and pools keep the class.

    Args:
        delivery: Called at the first connection to a Redis; ``None``: stay on kombu's own.
    """

    amqp: Any = app.amqp  # reads no configuration
    base: Any = amqp.Connection

    class HardenedConnection(base):  # type: ignore[misc]
        def get_transport_cls(self) -> Any:
            return _on_ours(super().get_transport_cls(), delivery)

        def __eqhash__(self) -> Any:
            # kombu keeps one pool for all connections that look alike, those of other apps too.
            return HashedSeq("hardened", id(app), super().__eqhash__())

    HardenedConnection.__name__ = HardenedConnection.__qualname__ = base.__name__
    amqp.Connection = HardenedConnection


def _on_ours(found: Any, delivery: Callable[[], Delivery | None]) -> Any:
    if getattr(found, "driver_type", "") != "redis":
        return found
    from kombu.transport import redis as kombu_redis

    if not issubclass(found, kombu_redis.Transport):
        return found
    mine = delivery()
    return found if mine is None else compose_transport(found, mine)


@lru_cache(maxsize=64)
def compose_transport(base: Any, delivery: Delivery) -> Any:
    """*base*, kombu's Redis transport or a subclass of it, with our channel, QoS and poller."""
    from celery_hardened.transport.channel import HardenedChannel
    from celery_hardened.transport.poller import FetchingPoller
    from celery_hardened.transport.qos import HardenedQoS

    if issubclass(base.Channel, HardenedChannel):
        return base

    def mixed(name: str, mixin: type, over: type, **attributes: Any) -> type:
        return type(name, (mixin, over), {"__module__": over.__module__, **attributes})

    qos = mixed("QoS", HardenedQoS, base.Channel.QoS)
    channel = mixed(base.Channel.__name__, HardenedChannel, base.Channel, QoS=qos, delivery=delivery)

    class Transport(base):  # type: ignore[misc]
        Channel = channel

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.cycle = FetchingPoller()

    Transport.__name__ = Transport.__qualname__ = base.__name__
    return Transport
