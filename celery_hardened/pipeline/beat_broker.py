"""Which broker lets one script claim a slot and push its message."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_hardened.hardening import Hardening
from celery_hardened.redis_connection import client_of


def are_together(hardening: Hardening) -> bool:
    """Do the records and the queues that *hardening*'s app publishes to lie in one Redis? Asks nobody."""
    app: Any = hardening.app
    if not is_capturable(app):
        return False
    return same_redis(hardening.redis, client_of(app.connection_for_write()))


def is_capturable(app: Celery) -> bool:
    """Does *app* publish to one Redis by kombu's own transport, or ours?

    Not with a list of brokers to fail over to: the script would go to one, and the message belong to another.
    """
    connection: Any = app.connection_for_write()
    transport = connection.get_transport_cls()
    if getattr(transport, "driver_type", "") != "redis":
        return False
    from kombu.transport import redis as kombu_redis

    if not issubclass(transport, kombu_redis.Transport):
        return False
    return issubclass(transport.Channel, kombu_redis.SentinelChannel) or len(connection.alt or ()) < 2


def same_redis(one: Any, other: Any) -> bool:
    """Do two clients lead to the same database of the same server? Asks nobody: ``False`` is also what is
    not known, such as two names of one host."""
    return _place(one) == _place(other)


def _place(client: Any) -> tuple[Any, ...]:
    pool = client.connection_pool
    how = pool.connection_kwargs
    database = int(how.get("db") or 0)
    if getattr(pool, "service_name", None) is not None:  # of a Sentinel, wherever its master is now
        nodes = {_address(node.connection_pool.connection_kwargs) for node in pool.sentinel_manager.sentinels}
        return ("sentinel", pool.service_name, frozenset(nodes), database)
    return (*_address(how), database)


def _address(how: dict[str, Any]) -> tuple[Any, ...]:
    if how.get("path"):
        return ("socket", how["path"])
    return ("tcp", str(how.get("host") or "localhost").lower(), int(how.get("port") or 6379))
