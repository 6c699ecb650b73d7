"""Declaring a queue: looked for first, made once, kept if it is there, and never worse than without us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.common import Broadcast

from celery_hardened.dead_letter import amqp_queue
from celery_hardened.dead_letter.amqp_install import use_quorum_queues
from celery_hardened.dead_letter.amqp_queue import LookFirst, look, look_first, made_by_us
from celery_hardened.settings import Settings
from tests.support.broker import Broker
from tests.support.client import client_side, disconnect
from tests.support.rabbitmq import RabbitMQ
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)]

QUORUM = Settings(amqp_queues="quorum")


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    with Connection(broker.url) as connection, connection.channel() as opened:
        yield opened


@pytest.fixture
def app(broker: Broker) -> Iterator[Celery]:
    with client_side():
        made = Celery("shop", broker=broker.url, set_as_current=False)
        made.conf.task_default_queue = broker.queue
        yield made
        disconnect(made)


def kind(broker: Broker, queue: str) -> str:
    assert isinstance(broker.server, RabbitMQ)
    found: str = broker.server.queue(broker.url.rpartition("/")[2], queue)["type"]
    return found


def declare(channel: Any, queue: Queue) -> None:
    look_first(queue, delivery_limit=20)(channel).declare()


# --- made or kept ---------------------------------------------------------------------------------


def test_a_new_queue_dead_letters(channel: Any, broker: Broker) -> None:
    """What is rejected in a new queue arrives in its dead letter queue."""
    declare(channel, Queue(broker.queue, Exchange("shop"), "orders"))
    channel.connection.client.Producer(channel).publish("x", exchange="shop", routing_key="orders")
    message = None
    while message is None:
        message = channel.basic_get(broker.queue)
    channel.basic_reject(message.delivery_tag, requeue=False)

    dead = None
    while dead is None:
        dead = channel.basic_get(f"{broker.queue}.dlq", no_ack=True)
    assert dead.headers["x-death"][0]["queue"] == broker.queue


def test_an_existing_queue_is_bound_and_left(channel: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is there is not declared; exchange and binding are made as they would be without us."""
    monkeypatch.setattr(LookFirst, "_declare_quorum", lambda *_: pytest.fail("it was declared"))
    channel.queue_declare(broker.queue, durable=True, auto_delete=False, arguments={"x-max-length": 7})
    declare(channel, Queue(broker.queue, Exchange("shop"), "orders", queue_arguments={"x-message-ttl": 5000}))
    channel.connection.client.Producer(channel).publish("x", exchange="shop", routing_key="orders")

    until(lambda: look(channel, broker.queue).message_count == 1, what="the message to arrive")
    assert kind(broker, broker.queue) == "classic"
    assert look(channel, f"{broker.queue}.dlq") is None
    assert made_by_us(channel, [broker.queue]) == set()


def test_ours_is_known_for_ours_whatever_its_settings(channel: Any, broker: Broker) -> None:
    """A changed delivery limit or TTL neither stops a deploy nor makes us forget that the queue is ours."""
    declare(channel, Queue(broker.queue))
    look_first(Queue(broker.queue, message_ttl=60), delivery_limit=50)(channel).declare()

    assert made_by_us(channel, [broker.queue]) == {broker.queue}


@pytest.mark.parametrize(
    "queue",
    [
        {"max_priority": 5},
        {"queue_arguments": {"x-queue-type": "classic"}},
        {"durable": False},
        {"auto_delete": True},
        {"exclusive": True},
    ],
)
def test_others_are_as_their_user_said(channel: Any, broker: Broker, queue: dict[str, Any]) -> None:
    """Queues that cannot or shall not be quorum queues are declared as configured, with nothing beside them."""
    declare(channel, Queue(broker.queue, **queue))

    assert kind(broker, broker.queue) == "classic"
    assert look(channel, f"{broker.queue}.dlq") is None


def test_a_faster_process(channel: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that appears between our look and our declare is kept, the channel stays usable,
    and nothing says that the queue is ours."""
    looks: list[Any] = []

    def slow_look(on: Any, name: str) -> Any:
        found = look(on, name)
        if not looks:
            channel.queue_declare(name, durable=True, auto_delete=False)
        looks.append(found)
        return found

    monkeypatch.setattr(amqp_queue, "look", slow_look)
    declare(channel, Queue(broker.queue, Exchange("shop"), "orders"))

    assert looks[0] is None
    assert kind(broker, broker.queue) == "classic"
    assert made_by_us(channel, [broker.queue]) == set()


def test_two_at_once(channel: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that both find nothing make the same queue, and neither undoes what the other made,
    even if their delivery limits differ."""
    declare(channel, Queue(broker.queue))
    looks: list[Any] = []

    def blind_once(on: Any, name: str) -> Any:
        looks.append(name)
        return None if len(looks) == 1 else look(on, name)

    monkeypatch.setattr(amqp_queue, "look", blind_once)
    look_first(Queue(broker.queue), delivery_limit=99)(channel).declare()

    assert made_by_us(channel, [broker.queue]) == {broker.queue}
    assert kind(broker, broker.queue) == "quorum"


def test_not_allowed(broker: Broker, unique: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who may declare his queue but not what goes with it gets his queue, as configured, and an error in the log."""
    node = broker.server
    assert isinstance(node, RabbitMQ)
    node.call("PUT", f"users/{unique}", {"password": "secret", "tags": ""})
    rights = {"configure": f"^{broker.queue}$", "write": ".*", "read": ".*"}
    node.call("PUT", f"permissions/{broker.url.rpartition('/')[2]}/{unique}", rights)

    url = broker.url.replace("guest:guest", f"{unique}:secret")
    with Connection(url) as connection, connection.channel() as channel:
        declare(channel, Queue(broker.queue))

    assert kind(broker, broker.queue) == "classic"
    assert "could not be made a quorum queue" in caplog.text
    node.call("DELETE", f"users/{unique}")


def test_looked_for_once_a_connection(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer looks before its first publish on a connection, and never again on it."""
    use_quorum_queues(app, QUORUM)
    looks: list[str] = []

    def counted(on: Any, name: str) -> Any:
        looks.append(name)
        return look(on, name)

    monkeypatch.setattr(amqp_queue, "look", counted)
    with app.connection_for_write() as connection:
        producer = connection.Producer()
        for _ in range(5):
            app.send_task("shop.charge", producer=producer)

    assert looks.count(app.conf.task_default_queue) == 1


# --- in an app ------------------------------------------------------------------------------------


def test_a_queue_given_as_an_object(app: Celery, broker: Broker) -> None:
    """A queue object in ``apply_async`` that is not in ``task_queues`` is looked for like the others."""
    use_quorum_queues(app, QUORUM)
    app.send_task("shop.charge", queue=Queue(broker.queue))
    app.send_task("shop.charge", queue=Queue(broker.queue, queue_arguments={"x-queue-type": "quorum"}))

    assert kind(broker, broker.queue) == "quorum"


def test_queues_of_all_origins(app: Celery) -> None:
    """``task_queues``, the default queue, missing ones and those added later look first;
    broadcasts and a worker's direct queue do not."""

    class Mine(Queue):
        pass

    app.conf.task_queues = [Mine("mine"), Queue("plain"), Broadcast("all")]
    use_quorum_queues(app, QUORUM)
    queues = app.amqp.queues
    queues.select_add("later", exchange="later", exchange_type="direct", routing_key="later")

    assert isinstance(queues["mine"], Mine)
    assert all(isinstance(queues[name], LookFirst) for name in ("mine", "plain", "missing", "later"))
    assert all(isinstance(queue, LookFirst) for name, queue in queues.consume_from.items() if "bcast" not in name)
    assert not any(isinstance(queue, LookFirst) for name, queue in queues.items() if "bcast" in name)
    queues.select("plain")
    assert isinstance(queues.consume_from["plain"], LookFirst)


def test_an_app_in_use(app: Celery) -> None:
    """An app whose queues and sender were made before is changed in place, with its own mapping class."""
    from celery.app.amqp import Queues

    class Mine(Queues):  # type: ignore[misc]
        pass

    app.amqp.queues_cls = Mine
    before = app.amqp.queues
    before.add(Queue("plain"))
    assert app.amqp.send_task_message
    assert app.amqp.default_queue

    use_quorum_queues(app, QUORUM)

    assert app.amqp.queues is before
    assert isinstance(before, Mine)
    assert isinstance(before["plain"], LookFirst)
    assert isinstance(app.amqp.default_queue, LookFirst)
    assert all(isinstance(queue, LookFirst) for queue in before.consume_from.values())


def test_off(app: Celery) -> None:
    """Without the setting nothing is installed."""
    use_quorum_queues(app, Settings())

    assert type(app.amqp.queues[app.conf.task_default_queue]) is Queue
    assert not app.steps["consumer"]
