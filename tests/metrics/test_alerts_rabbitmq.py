"""The rules on RabbitMQ's own series, against a RabbitMQ whose plugin a Prometheus scrapes."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_hardened.metrics.catalogue import QUEUE_CONSUMERS, QUEUE_DEAD, QUEUE_MISSING
from celery_hardened.metrics.rules.file import alerts_file
from celery_hardened.metrics.rules.terms import Terms, Thresholds
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.fixtures.prometheus import StartPrometheus
from tests.fixtures.servers import missing
from tests.support.broker import Broker
from tests.support.ports import free_port
from tests.support.rabbitmq import RabbitMQ
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WATCHED = (Path(__file__).parents[1] / "support" / "watched_app.py").read_text()


class ScrapedRabbitMQ(RabbitMQ):
    """A node that tells Prometheus of each queue."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.metrics_port = free_port()
        (directory / "enabled_plugins").write_text("[rabbitmq_management,rabbitmq_prometheus].\n")
        with (directory / "rabbitmq.conf").open("a") as configuration:
            configuration.write(f"\nprometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {self.metrics_port}\n")


@pytest.fixture
def node() -> Iterator[ScrapedRabbitMQ]:
    if not RabbitMQ.available():
        missing("rabbitmq-server")
    directory = Path(tempfile.mkdtemp(prefix="hardened-"))
    server = ScrapedRabbitMQ(directory / "rabbitmq")
    server.start()
    yield server
    server.destroy()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def broker(node: ScrapedRabbitMQ, unique: str) -> Broker:
    return Broker(kind="rabbitmq", url=node.add_vhost(unique), queue=f"q-{unique}", server=node)


@pytest.mark.timeout(300)
def test_rules_on_the_plugins_series_fire(
    node: ScrapedRabbitMQ,
    broker: Broker,
    load_project: LoadProject,
    start_worker: StartWorker,
    start_process: StartProcess,
    start_prometheus: StartPrometheus,
) -> None:
    """Messages that nobody takes are told by the plugin's series alone: their age, that nobody consumes, that nothing
    ends. A worker that comes ends all three. What our exporter tells of RabbitMQ only is there too."""
    names = {"CeleryRabbitQueueOldestMessage", "CeleryRabbitQueueNoConsumer", "CeleryRabbitQueueStalled"}
    terms = Terms(
        Thresholds(oldest_age=4, stale=30), app="proj", queues=(broker.queue,), broker="rabbitmq", scale=1 / 60
    )
    port, worker_port = free_port(), free_port()
    proj: Any = load_project(WATCHED)
    with proj.app.connection_for_write() as connection:
        connection.default_channel.queue_declare(f"{broker.queue}.dlq", durable=True, auto_delete=False)
    start_process(
        WATCHED,
        *("python", "-m", "celery", "-A", "proj", "hardened", "exporter", "--every", "0.5", "-Q", "nowhere"),
        # It looks for dead letter queues where the app makes them.
        env={"HARDENED_HTTP": f"127.0.0.1:{port}", "CONF": "{'hardened_amqp_queues': 'quorum'}"},
    )
    server = start_prometheus(
        {
            "rabbitmq": [f"127.0.0.1:{node.metrics_port}"],
            "exporter": [f"127.0.0.1:{port}"],
            "worker": [f"127.0.0.1:{worker_port}"],
        },
        rules=[alerts_file(terms)],
        paths={"rabbitmq": "/metrics/per-object"},
    )
    since = time.time()

    for number in range(5):
        proj.fine.delay(number)
    until(lambda: names <= server.firing(), within=90, every=0.5, what=f"{names} to fire")
    said = f"Queue {broker.queue}: RabbitMQ knows no consumer; messages that wait: 5"
    # The plugin looks every few seconds, and may have done so between two of the publishes.
    until(
        lambda: said in {one["annotations"]["summary"] for one in server.alerts() if one["state"] == "firing"},
        within=60,
        every=0.5,
        what="all five to be told of",
    )

    start_worker(WATCHED, env={"HARDENED_HTTP": f"127.0.0.1:{worker_port}"})
    until(lambda: not names & server.firing(), within=90, every=0.5, what="the alerts to end")

    for family in (QUEUE_CONSUMERS, QUEUE_MISSING, QUEUE_DEAD):
        until(
            lambda name=family.name: server.over(name, since=since, now=time.time()),
            within=60,
            what=f"{family.name} of the exporter",
        )
