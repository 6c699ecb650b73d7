"""Our connection to Redis: the broker's, with all its options, unless another one is set.

kombu knows how to read every Redis URL and option Celery documents (TLS,
Sentinel, sockets, ACL users, credential providers), so its channel is asked
for the connection parameters instead of parsing them a second time. The
channel is never opened: it would ping the server and join an event loop.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from celery import Celery
from kombu.connection import Connection
from kombu.transport import redis as kombu_redis
from redis import BlockingConnectionPool, ConnectionPool, Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ReadOnlyError, RedisError
from redis.retry import Retry

from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.settings import Settings

#: Seconds; used where ``broker_transport_options`` sets no time-out of its own.
#: A connection without one would hang for as long as the network likes.
SOCKET_TIMEOUT = 5.0

#: Connections a process may open; callers beyond that wait for one, up to the socket time-out.
MAX_CONNECTIONS = 50

#: Connections to a Sentinel-managed master. That pool refuses instead of waiting, so its
#: bound is one that only a leak can reach.
MAX_SENTINEL_CONNECTIONS = 1000


def connect(app: Celery, settings: Settings) -> Redis:
    """Build a client of the Redis that keeps our records. Nothing is sent yet.

    The client may be shared by threads, greenlets and forked children: its pool
    notices a new process and starts empty there.

    Raises:
        ConfigurationError: ``hardened_redis_url`` is not set and the broker is no Redis,
            or the URL cannot be read.
    """
    return client_of(_explicit(app, settings.redis_url) if settings.redis_url else _broker(app))


def client_of(connection: Connection, *, tries: int = 3) -> Redis:
    """Build a client of the Redis that *connection* leads to, as ``connect`` does. Nothing is sent yet.

    Args:
        tries: How often one step is sent before it fails.
    """
    pool = _pool(connection, tries=tries)
    credentials = pool.connection_kwargs.get("credential_provider")
    if credentials is None:
        return Redis(connection_pool=pool)
    # Given to the client as well, rotated credentials reach connections that are already open.
    return Redis(connection_pool=pool, credential_provider=credentials)


def key_prefix(app: Celery, settings: Settings) -> str:
    """First part of every key of ours: the broker's ``global_keyprefix``, then ``hardened_key_prefix``."""
    options: Mapping[str, Any] = app.conf.broker_transport_options or {}
    return f"{options.get('global_keyprefix') or ''}{settings.key_prefix}"


@contextmanager
def answered(operation: str) -> Iterator[None]:
    """Name what is being done, should Redis not answer.

    Raises:
        StoreUnavailableError: For every ``RedisError``, which is its ``__cause__``.
    """
    try:
        yield
    except RedisError as problem:
        # redis-py puts addresses into its messages, never passwords.
        raise StoreUnavailableError(operation, f"{type(problem).__name__}: {problem}") from problem


def _broker(app: Celery) -> Connection:
    connection: Connection = app.connection_for_write()
    if not _is_redis(connection):
        raise ConfigurationError(
            f"celery_hardened keeps its records (dead letters, worker deaths) in Redis. The broker "
            f"(transport {str(connection.transport_cls)!r}) is not a Redis, and hardened_redis_url is not set. "
            f"Set hardened_redis_url, for example to 'redis://localhost:6379/1'; where nothing need be kept, "
            f"as in a test suite, set hardened_dead_letter_store = 'memory'."
        )
    return connection


def _explicit(app: Celery, url: str) -> Connection:
    """Read ``hardened_redis_url``. Options of the broker apply if that is a Redis too;
    whether TLS is used is the URL's own word."""
    broker = app.connection_for_write()
    like_broker = _is_redis(broker)
    options = dict(app.conf.broker_transport_options or {}) if like_broker else {}
    url, master = _without_master(url)
    if master is not None:
        options["master_name"] = master
    tls = broker.ssl if like_broker else None
    if url.startswith("unix://"):
        url = "redis+socket://" + url.removeprefix("unix://")
    if url.startswith("rediss://") and not isinstance(tls, dict):
        # kombu would accept any certificate here; a query parameter of the URL still wins.
        tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    elif not url.startswith(("rediss://", "sentinel://")):
        tls = None
    try:
        connection = Connection(url, ssl=tls, transport_options=options)
        known = _is_redis(connection)
    except (TypeError, ValueError, LookupError, ImportError) as problem:
        # The text of these errors may quote parts of the URL, a badly quoted password among them.
        raise ConfigurationError(
            f"hardened_redis_url cannot be read ({type(problem).__name__}). It must look like "
            f"redis://user:password@host:6379/0 with special characters of the password percent-encoded."
        ) from None
    if not known:
        raise ConfigurationError(
            f"hardened_redis_url is a {str(connection.transport_cls)!r} URL; it must start with redis://, "
            f"rediss://, sentinel://, redis+socket:// or unix://."
        )
    return connection


def _is_redis(connection: Connection) -> bool:
    channel = getattr(_transport(connection), "Channel", None)
    return isinstance(channel, type) and issubclass(channel, kombu_redis.Channel)


def _transport(connection: Connection) -> Any:
    return connection.get_transport_cls()


def _without_master(url: str) -> tuple[str, str | None]:
    """Take ``master_name`` out of the URL's query: Sentinel needs it, and a broker that is
    no Sentinel has no option to say it in."""
    master = None
    parts = []
    for one in url.split(";"):
        split = urlsplit(one)
        query = dict(parse_qsl(split.query))
        if "master_name" in query:
            master = query.pop("master_name")
            one = urlunsplit(split._replace(query=urlencode(query)))
        parts.append(one)
    return ";".join(parts), master


def _pool(connection: Connection, *, tries: int) -> ConnectionPool:
    transport = _transport(connection)
    channel = _unopened(transport.Channel, connection, transport.default_port)
    managed = isinstance(channel, kombu_redis.SentinelChannel)
    channel.max_connections = MAX_SENTINEL_CONNECTIONS if managed else MAX_CONNECTIONS
    # None is kombu's default for both, and means for ever.
    channel.socket_timeout = channel.socket_timeout or SOCKET_TIMEOUT
    channel.socket_connect_timeout = channel.socket_connect_timeout or SOCKET_TIMEOUT
    if managed and not getattr(channel, "master_name", None):
        raise ConfigurationError(
            "a sentinel:// URL needs the name of the master: set broker_transport_options"
            "['master_name'], or add ?master_name=... to hardened_redis_url."
        )
    # Quick further tries, for connections the server closed while they were idle. Every
    # step of ours may be repeated.
    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), tries - 1)
    # After a fail-over behind an unchanged address, open connections still lead to the old master.
    retry.update_supported_errors([ReadOnlyError])
    pool: ConnectionPool
    try:
        if managed:
            pool = channel._sentinel_managed_pool()
            pool.connection_kwargs["retry"] = retry
        else:
            parameters: dict[str, Any] = channel._connparams()
            pool = BlockingConnectionPool(timeout=channel.socket_timeout, retry=retry, **parameters)  # type: ignore[no-untyped-call]
    except ValueError:
        # Its text may quote parts of the URL.
        raise ConfigurationError(
            "the Redis URL or its options cannot be used: the database must be a number, "
            "and credential_provider a redis.CredentialProvider."
        ) from None
    return pool


def _unopened(channel_class: Any, connection: Connection, default_port: int) -> Any:
    """Make a channel that knows its options and has not connected: what its ``__init__``
    would do before it pings the server."""
    channel = channel_class.__new__(channel_class)
    channel.connection = SimpleNamespace(client=connection, default_port=default_port)
    channel._registered = False
    channel._sentinel_manager = channel._async_sentinel_manager = None
    options: Mapping[str, Any] = connection.transport_options or {}
    for name in channel_class.from_transport_options:
        if name in options:
            setattr(channel, name, options[name])
    return channel
