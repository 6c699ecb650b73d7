"""Our connection to Redis is the broker's, with all its options, or the one that is set. Nothing is contacted here."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from celery import Celery
from kombu.transport import redis as kombu_redis
from redis import BlockingConnectionPool, CredentialProvider, Redis, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelConnectionPool

from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.redis_connection import SOCKET_TIMEOUT, answered, connect, key_prefix
from celery_hardened.settings import Settings
from tests.support.ports import free_port


def client_of(conf: dict[str, Any], **settings: Any) -> Redis:
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    return connect(app, Settings(**settings))


def parameters(conf: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return dict(client_of(conf, **settings).connection_pool.connection_kwargs)


def endpoint(conf: dict[str, Any], **settings: Any) -> tuple[Any, ...]:
    found = parameters(conf, **settings)
    return tuple(found.get(name) for name in ("host", "port", "db", "username", "password"))


# --- which Redis ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"broker_url": "redis://"}, ("127.0.0.1", 6379, 0, None, None)),
        ({"broker_url": "redis://ann:p%40ss@cache:7000/3"}, ("cache", 7000, 3, "ann", "p@ss")),
        ({"broker_url": "redis://:secret@cache"}, ("cache", 6379, 0, None, "secret")),
        ({"broker_url": ["redis://one/1", "redis://two/2"]}, ("one", 6379, 1, None, None)),
        ({"broker_url": "redis://one/1;redis://two/2"}, ("one", 6379, 1, None, None)),
        ({"broker_url": "amqp://", "broker_write_url": "redis://writes/4"}, ("writes", 6379, 4, None, None)),
    ],
)
def test_the_brokers_redis_is_used(conf: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """Host, port, database, ACL user and password; of several, the first: records cannot move about."""
    assert endpoint(conf) == expected


def test_a_url_of_our_own_comes_first() -> None:
    """Whatever the broker is; its TLS and options do not apply to another kind of server."""
    conf = {"broker_url": "amqp://rabbit", "broker_use_ssl": {"keyfile": "k"}, "broker_transport_options": {"x": 1}}
    assert endpoint(conf, redis_url="redis://ann:pw@records:7000/5") == ("records", 7000, 5, "ann", "pw")
    assert endpoint({"broker_url": "redis://broker"}, redis_url="redis://records") == (
        "records",
        6379,
        0,
        None,
        None,
    )


@pytest.mark.parametrize("broker", ["amqp://user:sesame@rabbit//", "memory://", "pyamqp://"])
def test_no_redis_at_all_is_one_clear_error(broker: str) -> None:
    """It names the setting, shows no password, and comes when the connection is first asked for."""
    with pytest.raises(ConfigurationError, match=r"hardened_redis_url is not set\. Set hardened_redis_url") as caught:
        client_of({"broker_url": broker})
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://user:sesame@host",
        "http://user:sesame@host",
        "redis://user:sesame@host:port",
        "redis://user:ses/ame@host/0",
        "redis://user:sesame@host/zero",
        "redis://user:sesame@host?no_such_option=1",
        "rediss://user:sesame@host?ssl_cert_reqs=perhaps",
    ],
)
def test_a_url_that_cannot_be_read_shows_no_password(url: str) -> None:
    """Libraries quote the URL, or the part they stumbled over, in their errors. We do not."""
    with pytest.raises(ConfigurationError) as caught:
        client_of({"broker_url": "memory://"}, redis_url=url)
    said = "".join(str(each) for each in (caught.value, caught.value.__cause__) if each)
    assert "sesame" not in said
    assert "ses" not in said.replace("passes", "")


def test_a_socket() -> None:
    """As kombu writes it for brokers, and as redis-py does."""
    for conf, own in (
        ({"broker_url": "redis+socket:///run/redis.sock"}, None),
        ({"broker_url": "memory://"}, "redis+socket:///run/redis.sock"),
        ({"broker_url": "memory://"}, "unix:///run/redis.sock"),
    ):
        pool = client_of(conf, redis_url=own).connection_pool
        assert pool.connection_class is UnixDomainSocketConnection
        assert pool.connection_kwargs["path"] == "/run/redis.sock"
        assert "socket_connect_timeout" not in pool.connection_kwargs


# --- TLS -----------------------------------------------------------------------------------------


def test_the_brokers_tls_is_used() -> None:
    """``broker_use_ssl``, on ``redis://`` and ``rediss://`` alike, as Celery has it."""
    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca.pem"}
    for url in ("redis://cache", "rediss://cache"):
        pool = client_of({"broker_url": url, "broker_use_ssl": tls}).connection_pool
        assert issubclass(pool.connection_class, SSLConnection)
        assert pool.connection_kwargs["ssl_ca_certs"] == "/ca.pem"


def test_tls_of_our_own_url_checks_certificates() -> None:
    """kombu's default for ``rediss://`` accepts any; ours does only if the URL says so."""
    strict = client_of({"broker_url": "memory://"}, redis_url="rediss://records").connection_pool
    assert issubclass(strict.connection_class, SSLConnection)
    assert strict.connection_kwargs["ssl_cert_reqs"] == ssl.CERT_REQUIRED

    lax = parameters({"broker_url": "memory://"}, redis_url="rediss://records?ssl_cert_reqs=optional")
    assert lax["ssl_cert_reqs"] == ssl.CERT_OPTIONAL

    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca.pem"}
    conf = {"broker_url": "redis://cache", "broker_use_ssl": tls}
    assert parameters(conf, redis_url="rediss://records")["ssl_ca_certs"] == "/ca.pem"
    plain = client_of(conf, redis_url="redis://records").connection_pool
    assert not issubclass(plain.connection_class, SSLConnection)


# --- options -------------------------------------------------------------------------------------


def test_no_connection_waits_for_ever() -> None:
    """Finite where nothing is set; what the user sets is used."""
    found = parameters({"broker_url": "redis://"})
    assert found["socket_timeout"] == found["socket_connect_timeout"] == SOCKET_TIMEOUT
    options = {"socket_timeout": 30, "socket_connect_timeout": 2, "socket_keepalive": True, "client_name": "shop"}
    found = parameters({"broker_url": "redis://", "broker_transport_options": options})
    assert {name: found[name] for name in options} == options


def test_answers_are_bytes() -> None:
    """Envelopes are binary."""
    assert not parameters({"broker_url": "redis://"}).get("decode_responses")


def test_the_pool_waits_instead_of_failing() -> None:
    """More threads or greenlets than connections: they queue up, for a time that ends."""
    pool = client_of({"broker_url": "redis://"}).connection_pool
    assert isinstance(pool, BlockingConnectionPool)
    assert pool.timeout == SOCKET_TIMEOUT


class Vault(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "ann", "rotated"


def test_a_credential_provider_takes_the_place_of_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named in the URL, as Celery documents it."""
    monkeypatch.setattr(kombu_redis, "symbol_by_name", {"shop.Vault": Vault}.__getitem__)
    found = parameters({"broker_url": "redis://ann:pw@cache?credential_provider=shop.Vault"})
    assert isinstance(found["credential_provider"], CredentialProvider)
    assert "password" not in found


def test_sentinel() -> None:
    """Several sentinels, the master's name from the broker's options, and the sentinels' own password."""
    options = {"master_name": "mymaster", "sentinel_kwargs": {"password": "guard"}, "socket_timeout": 7}
    conf = {"broker_url": "sentinel://:pw@one:1;sentinel://two:2/0", "broker_transport_options": options}
    pool = client_of(conf).connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "mymaster"
    manager = pool.sentinel_manager
    assert [
        (each.connection_pool.connection_kwargs["host"], each.connection_pool.connection_kwargs["port"])
        for each in manager.sentinels
    ] == [("one", 1), ("two", 2)]
    assert manager.sentinels[0].connection_pool.connection_kwargs["password"] == "guard"
    assert (pool.connection_kwargs["password"], pool.connection_kwargs["socket_timeout"]) == ("pw", 7)


def test_sentinel_of_our_own() -> None:
    """With a broker that is none, the URL itself names the master."""
    pool = client_of(
        {"broker_url": "amqp://"}, redis_url="sentinel://one:1?master_name=m;sentinel://two:2/3?master_name=m"
    ).connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "m"
    with pytest.raises(ConfigurationError, match="master_name"):
        client_of({"broker_url": "amqp://"}, redis_url="sentinel://one:1")


def test_the_prefix_goes_after_the_brokers() -> None:
    """``global_keyprefix`` is what access rules and people look for first."""
    app = Celery("shop", set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "shop_"}
    assert key_prefix(app, Settings()) == "shop_hardened"
    app.conf.broker_transport_options = {}
    assert key_prefix(app, Settings(key_prefix="h")) == "h"


# --- errors --------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_named_operation_and_all() -> None:
    """One error for every Redis error, and its cause kept; after a short second try, not a long one."""
    client = client_of({"broker_url": f"redis://:sesame@127.0.0.1:{free_port()}"})
    with pytest.raises(StoreUnavailableError, match=r"^looking failed.*ConnectionError") as caught, answered("looking"):
        client.ping()
    assert caught.value.__cause__ is not None
    assert "sesame" not in str(caught.value)


def test_kombu_still_has_what_we_ask_it_for() -> None:
    """
    Private names of kombu we rely on: the options a channel takes, how it makes the
    parameters of a connection, and the pool of a Sentinel's master.
    """
    assert {"socket_timeout", "socket_keepalive", "global_keyprefix"} <= {*kombu_redis.Channel.from_transport_options}
    assert callable(kombu_redis.Channel._connparams)
    assert callable(kombu_redis.SentinelChannel._sentinel_managed_pool)
    assert {"master_name", "sentinel_kwargs"} <= {*kombu_redis.SentinelChannel.from_transport_options}
