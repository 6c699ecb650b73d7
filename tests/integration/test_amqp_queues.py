"""``hardened_amqp_queues = "quorum"`` on a real RabbitMQ: which queues are made, which are kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.amqp_app import SOURCE
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.rabbitmq import RabbitMQ
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)]


def queue_of(broker: Broker, suffix: str = "") -> dict[str, Any]:
    """The broker's view of the test's queue, or of ``<queue><suffix>``."""
    assert isinstance(broker.server, RabbitMQ)
    vhost = broker.url.rpartition("/")[2]
    return broker.server.queue(vhost, broker.queue + suffix)


def declare_classic(broker: Broker, **arguments: Any) -> None:
    """Have the test's queue there already, as a plain Celery would have made it."""
    with Connection(broker.url) as connection, connection.channel() as channel:
        channel.queue_declare(broker.queue, durable=True, auto_delete=False, arguments=arguments)


def test_new_queue_is_a_quorum_queue(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """A queue that no one declared before becomes a quorum queue with a limit and a dead letter queue,
    also a quorum queue; the worker runs tasks from it."""
    start_worker(SOURCE)
    proj = load_project(SOURCE)

    assert proj.add.delay(2, 3).get(timeout=30) == 5

    made, dead = queue_of(broker), queue_of(broker, ".dlq")
    assert made["type"] == dead["type"] == "quorum"
    assert made["arguments"]["x-delivery-limit"] == 20
    assert made["arguments"]["x-dead-letter-exchange"] == f"hardened.dlx.{broker.queue}"


def test_producer_first(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """A producer that publishes before any worker ever ran makes the same queue, and the worker takes it as it is."""
    proj = load_project(SOURCE)
    result = proj.add.delay(2, 3)
    assert queue_of(broker)["type"] == "quorum"

    worker = start_worker(SOURCE)

    assert result.get(timeout=30) == 5
    assert "stays as it is" not in worker.log()


def test_second_start(start_worker: StartWorker, load_project: LoadProject) -> None:
    """A worker starts on the quorum queue its predecessor made."""
    worker = start_worker(SOURCE)
    worker.restart()

    assert load_project(SOURCE).add.delay(2, 3).get(timeout=30) == 5
    assert worker.running


def test_existing_queue_is_kept(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """A classic queue stays one: worker and producer work with it, and the worker logs, once,
    the command that adds a dead letter queue."""
    declare_classic(broker)
    proj = load_project(SOURCE)
    result = proj.add.delay(2, 3)
    worker = start_worker(SOURCE)

    assert result.get(timeout=30) == 5
    assert queue_of(broker)["type"] == "classic"
    assert queue_of(broker)["arguments"] == {}
    assert worker.log().count("rabbitmqctl set_policy") == 1


# --- delays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_delayed_tasks_wait_in_the_broker(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, existing: bool
) -> None:
    """More delayed tasks than a worker may prefetch do not keep it from others, and come when they are due."""
    if existing:
        declare_classic(broker)
    start_worker(SOURCE)
    proj = load_project(SOURCE)
    due = time.time() + 20
    delayed = [proj.add.apply_async((n, n), countdown=20) for n in range(5)]

    assert proj.add.delay(2, 3).get(timeout=15) == 5
    assert time.time() < due - 1
    assert [result.get(timeout=60) for result in delayed] == [0, 2, 4, 6, 8]
    assert time.time() >= due


def test_retries_of_delayed_tasks(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """Tasks that came with a delay wait in the broker again when they are retried with one,
    and come back to their own queue. By which exchange they come depends on the bits of the delay."""
    start_worker(SOURCE)
    proj = load_project(SOURCE)
    retried = [proj.once_more.apply_async((30,), countdown=1 + n) for n in range(6)]
    until(lambda: notes(out, "runs").count("0") == 6, what="all of them to be retried")

    assert proj.add.delay(2, 3).get(timeout=15) == 5
    assert "1" not in notes(out, "runs")
    assert all(result.get(timeout=60).endswith(f".{broker.queue}") for result in retried)


def test_a_delay_is_for_one_queue(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """A delayed task for queue ``a.b`` does not come to queue ``b`` as well."""
    both = SOURCE + "\napp.conf.task_queues = [Queue('eu.' + os.environ['QUEUE']), Queue(os.environ['QUEUE'])]\n"
    start_worker(both)
    proj = load_project(both)
    proj.add.apply_async((0, 0), countdown=2).get(timeout=60)
    result = proj.add.apply_async((1, 1), queue=f"eu.{broker.queue}", countdown=2)

    assert result.get(timeout=60) == 2
    proj.add.apply_async((2, 2), countdown=2).get(timeout=60)
    assert sorted(notes(out, "runs")) == ["0 0", "1 1", "2 2"]
