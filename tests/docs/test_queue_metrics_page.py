"""``docs/how-to/queue-metrics.md``: the permissions it gives are enough, and the metrics it names exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kombu import Connection
from redis import Redis
from redis.exceptions import NoPermissionError

from celery_hardened import Hardening
from celery_hardened.metrics import catalogue
from celery_hardened.pipeline.queue_metrics import QueueMetrics
from tests.fixtures.processes import LoadProject
from tests.support.broker import Broker
from tests.support.pages import text_of
from tests.support.rabbitmq import RabbitMQ
from tests.support.redis_server import RedisServer

PAGE = text_of("how-to/queue-metrics.md")
APP = (Path(__file__).parents[1] / "support" / "exporter_app.py").read_text()


def rule() -> list[str]:
    """What the page's ``ACL SETUSER`` says of the user, less its name and password."""
    line = next(line for line in PAGE.splitlines() if line.startswith("$ redis-cli ACL SETUSER"))
    words = shlex.split(line)
    assert words[4:7] == ["exporter", "on", ">secret"]
    return words[7:]


def put_one(broker: Broker) -> None:
    with Connection(broker.url) as connection, connection.SimpleQueue(broker.queue) as queue:
        queue.put("x")


def test_every_metric_of_queues_is_named() -> None:
    """The table has each metric that the exporter tells of a store, and no other."""
    named = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")))
    )
    told = [value for name, value in vars(catalogue).items() if name.startswith(("QUEUE_", "LETTERS", "LEADER_"))]
    names = {family.name.removeprefix("celery_hardened_") for family in told}
    assert named == names - {"queue_scrape_timestamp_seconds", "queue_scrape_errors_total"}


@pytest.mark.integration
@pytest.mark.parametrize("broker", ["redis", "redis7"], indirect=True)
def test_a_user_of_redis_needs_no_more(load_project: LoadProject, broker: Broker, unique: str) -> None:
    """As a user with these permissions all three stores are read, and nothing can be written."""
    assert isinstance(broker.server, RedisServer)
    user = f"e-{unique}"
    admin = Redis.from_url(broker.url, decode_responses=True)
    admin.execute_command("ACL", "SETUSER", user, "on", ">secret", *rule())  # type: ignore[no-untyped-call]
    url = urlsplit(broker.url)._replace(netloc=f"{user}:secret@127.0.0.1:{broker.port}").geturl()
    put_one(broker)
    hardening = Hardening.expect(load_project(APP, {"BROKER_URL": url, "RECORDS_URL": url}).app)
    hardening.metrics.keep_here()
    metrics = QueueMetrics(hardening)
    metrics.read()
    metrics.stop()
    assert hardening.metrics.registry.values(catalogue.QUEUE_WAITING) == {(broker.queue,): 1}
    assert set(hardening.metrics.registry.values(catalogue.QUEUE_ERRORS).values()) == {0}
    assert len(hardening.metrics.registry.values(catalogue.QUEUE_SCRAPED)) == 3
    with pytest.raises(NoPermissionError):
        hardening.redis.set("k", "v")
    admin.execute_command("ACL", "DELUSER", user)  # type: ignore[no-untyped-call]


@pytest.mark.integration
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_user_of_rabbitmq_needs_none(load_project: LoadProject, broker: Broker, unique: str) -> None:
    """As a user who may do nothing in its virtual host, the queues are counted."""
    assert isinstance(broker.server, RabbitMQ)
    server, user = broker.server, f"e-{unique}"
    server.call("PUT", f"users/{user}", {"password": "secret", "tags": ""})
    server.call("PUT", f"permissions/{unique}/{user}", {"configure": "^$", "write": "^$", "read": "^$"})
    put_one(broker)
    url = urlsplit(broker.url)._replace(netloc=f"{user}:secret@127.0.0.1:{broker.port}").geturl()
    hardening = Hardening.expect(load_project(APP, {"BROKER_URL": url}).app)
    hardening.metrics.keep_here()
    metrics = QueueMetrics(hardening)
    metrics.read()
    metrics.stop()
    assert hardening.metrics.registry.values(catalogue.QUEUE_WAITING) == {(broker.queue,): 1}
    assert set(hardening.metrics.registry.values(catalogue.QUEUE_ERRORS).values()) == {0}
    server.call("DELETE", f"users/{user}")
