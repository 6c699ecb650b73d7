"""``hardened_amqp_queues = "quorum"`` on an ordinary hardened app: declared, drained, and poison stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from kombu import Connection

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.letters import letter_of, letters
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until

pytestmark = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)

QUORUM = {"CONF": "{'hardened_amqp_queues': 'quorum', 'broker_native_delayed_delivery_queue_type': 'classic'}"}


def test_new_queue_is_quorum_and_everything_works_on_it(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """Retries, dead letters and poison on a quorum queue made by us; its dead letter queue stays empty."""
    start_worker(SHOP, env=QUORUM)
    project = load_project(SHOP, env=QUORUM)

    assert project.flaky.delay("f").get(timeout=60) == "f"
    assert letter_of(project, project.broken.delay("b").id).letter.reason == "permanent"
    assert letter_of(project, project.rejecting.delay("r").id).letter.reason == "rejected"
    assert letter_of(project, project.killer.delay("k").id).letter.reason == "poison"
    assert sum(line.startswith("proj.killer ") for line in notes(out, "starts")) == 3

    with Connection(broker.url) as connection, connection.channel() as channel:
        assert channel.queue_declare(broker.queue, passive=True)
        until(
            lambda: channel.queue_declare(f"{broker.queue}.dlq", passive=True).message_count == 0,
            what="the dead letter queue to be drained",
        )
    assert len(letters(project)) == 3, "the drain made a second letter of a failure"
