"""Our connection against real servers: sockets, TLS, access rules, Sentinel; forks, threads, greenlets."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_hardened.dead_letter.contract import Query
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from celery_hardened.embedded import EmbeddedValkey
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.redis_connection import MAX_CONNECTIONS, connect, key_prefix
from celery_hardened.settings import Settings
from tests.fixtures.servers import missing
from tests.stores.letters import ROOMY, letter
from tests.support.ports import free_port
from tests.support.proc import Proc
from tests.support.redis_server import RedisServer
from tests.support.until import until


def store_of(conf: dict[str, Any], **settings: Any) -> RedisDeadLetterStore:
    """The store of an app with this configuration."""
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    own = Settings(**settings)
    return RedisDeadLetterStore(connect(app, own), prefix=key_prefix(app, own), retention=ROOMY)


def works(store: RedisDeadLetterStore) -> bool:
    """Write, search and count once."""
    one = letter(uuid.uuid4().hex)
    return store.put(one) and store.get(one.id).letter == one and store.count(Query(task=one.task)) > 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test's own."""
    server = RedisServer(tmp_path / "server")
    yield server
    server.stop()


# --- ways to reach it ----------------------------------------------------------------------------


def test_a_database_of_the_broker(each_redis_url: str) -> None:
    """The records are in the database that the broker's URL names."""
    assert works(store_of({"broker_url": each_redis_url}))
    assert Redis.from_url(each_redis_url).dbsize() > 0


def test_a_socket(tmp_path: Path, server_directory: Path) -> None:
    """Both ways to write it."""
    path = server_directory / "own.sock"
    with EmbeddedValkey(tmp_path / "server", config={"unixsocket": str(path)}):
        assert works(store_of({"broker_url": f"redis+socket://{path}"}))
        assert works(store_of({"broker_url": "memory://"}, redis_url=f"unix://{path}"))


def test_a_user_with_access_to_the_prefix_only(valkey: RedisServer, unique: str) -> None:
    """
    All keys begin with ``global_keyprefix``, and no command is used beyond those of
    data, scripts and connections.
    """
    url = valkey.database()
    rules = (
        "on",
        ">sesame",
        f"~{unique}_*",
        "+@read",
        "+@write",
        "+@scripting",
        "+@connection",
        "+time",
        "-@dangerous",
    )
    admin = Redis.from_url(url)
    admin.execute_command("ACL", "SETUSER", unique, *rules)
    try:
        conf = {
            "broker_url": url.replace("redis://", f"redis://{unique}:sesame@"),
            "broker_transport_options": {"global_keyprefix": f"{unique}_"},
        }
        store = store_of(conf)
        assert works(store)
        store.sweep()
        store.stats()
    finally:
        admin.execute_command("ACL", "DELUSER", unique)
        admin.close()


def test_tls(tmp_path: Path) -> None:
    """``broker_use_ssl`` with a certificate authority of one's own; without it the server is refused."""
    if shutil.which("openssl") is None or (binary := shutil.which("redis-server")) is None:
        missing("openssl or redis-server")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        key,
        "-out",
        certificate,
        *subject,
    ]
    subprocess.run(request, check=True, capture_output=True)
    port = free_port()
    config = {
        "tls-port": port,
        "tls-cert-file": str(certificate),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
    }
    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": str(certificate)}
    url = f"rediss://localhost:{port}/0"
    in_url = f"{url}?ssl_ca_certs={certificate}&ssl_cert_reqs=required"
    with EmbeddedValkey(tmp_path / "server", binary=Path(binary), config=config):
        assert works(store_of({"broker_url": url, "broker_use_ssl": tls}))
        assert works(store_of({"broker_url": "memory://"}, redis_url=in_url))
        with pytest.raises(StoreUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            works(store_of({"broker_url": "memory://"}, redis_url=url))


def test_sentinel(tmp_path: Path, server: RedisServer) -> None:
    """The master is found through a real Sentinel, as broker and by a URL of our own."""
    server.start()
    binary = shutil.which("redis-server") or missing("redis-server")
    port = free_port()
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor shop 127.0.0.1 {server.port} 1\n")
    sentinel = Proc("sentinel", [binary, str(conf), "--sentinel"], cwd=tmp_path)
    sentinel.start()
    try:
        url = f"sentinel://127.0.0.1:{port}/2"
        options = {"master_name": "shop"}
        store = store_of({"broker_url": url, "broker_transport_options": options})
        until(lambda: Redis(port=port).sentinel_masters(), what="the sentinel to know the master")
        assert works(store)
        assert works(store_of({"broker_url": "memory://"}, redis_url=f"{url}?master_name=shop"))
        assert Redis(port=server.port or 0, db=2).dbsize() > 0
    finally:
        sentinel.kill()


# --- who shares it -------------------------------------------------------------------------------


def test_a_server_that_was_restarted_is_found_again(server: RedisServer) -> None:
    """Connections in the pool are dead; the next call notices and connects anew."""
    server.start()
    store = store_of({"broker_url": server.database()})
    assert works(store)
    server.kill()
    server.start()
    assert works(store)


def test_a_forked_child_has_connections_of_its_own(valkey: RedisServer) -> None:
    """Parent and children use one store at once; no answer reaches the wrong one."""
    store = store_of({"broker_url": valkey.database()})
    assert works(store)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            done = all(works(store) for _ in range(50))
            os._exit(0 if done else 1)
        children.append(child)
    assert all(works(store) for _ in range(50))
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert store.count(Query()) == 201


def test_more_threads_than_connections(valkey: RedisServer) -> None:
    """They wait for each other; nobody is refused."""
    store = store_of({"broker_url": valkey.database()})
    done: list[bool] = []
    threads = [threading.Thread(target=lambda: done.append(works(store))) for _ in range(2 * MAX_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * len(threads)


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
from celery import Celery
from celery_hardened.dead_letter.contract import Query
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from celery_hardened.redis_connection import connect
from celery_hardened.settings import Settings
from tests.stores.letters import ROOMY, letter

store = RedisDeadLetterStore(connect(Celery(broker=sys.argv[1]), Settings()), prefix="p", retention=ROOMY)
jobs = [gevent.spawn(store.put, letter()) for _ in range(200)]
gevent.joinall(jobs, raise_error=True)
assert all(job.value for job in jobs)
assert store.count(Query()) == 200
"""


def test_two_hundred_greenlets(valkey: RedisServer) -> None:
    """Under gevent's patches the pool blocks greenlets, not the process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GREENLETS, valkey.database()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
