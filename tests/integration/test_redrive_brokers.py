"""Redriven messages on real brokers: there to the byte, or refused before they are lost."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_hardened.dead_letter.contract import Query
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.dead_letter.redrive import redrive
from celery_hardened.dead_letter.redrive_run import RedriveReport
from celery_hardened.marks import Marks
from celery_hardened.wire import Wire, capture
from tests.stores.letters import ROOMY, letter
from tests.support.broker import Broker
from tests.support.until import until

pytestmark = pytest.mark.integration


@pytest.fixture
def app(broker: Broker) -> Iterator[Celery]:
    app = Celery("shop", broker=broker.url, set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def store() -> InMemoryDeadLetterStore:
    return InMemoryDeadLetterStore(retention=ROOMY)


def run(app: Celery, store: InMemoryDeadLetterStore, **options: Any) -> RedriveReport:
    return redrive(app, store, Query(), by="ann", why="", redrive_max=3, **options)


def declare(app: Celery, queue: str) -> None:
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare(queue, durable=True, auto_delete=False)


def arrived(app: Celery, queue: str, number: int) -> list[Wire]:
    found: list[Wire] = []
    with app.connection_for_read() as connection:
        channel = connection.default_channel

        def take() -> bool:
            # All that is there: with a pause after each, hundreds would take longer than is waited for.
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                # amqp's own message is turned into kombu's where a consumer would.
                found.append(capture(channel.message_to_python(message)))
            return len(found) == number

        until(take, what=f"{number} messages in {queue}")
    return found


BODIES = {
    "json": (b'[["\xc3\xbc", 1.0],  {"a": null}, {}]', "application/json", "utf-8"),
    "binary": (bytes(range(256)), "application/data", "binary"),
    "empty": (b"", None, None),
    "large": (b"x" * 2_000_000, "text/plain", "us-ascii"),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_redriven_message_is_faithful(app: Celery, store: InMemoryDeadLetterStore, broker: Broker, kind: str) -> None:
    """Body, content type, headers of every JSON kind, priority and reply-to arrive as they were."""
    declare(app, broker.queue)
    body, content_type, encoding = BODIES[kind]
    headers = {
        "task": "shop.charge",
        "id": "t",
        "own": {"list": [1, "a", None, 1.5]},
        "eta": "2020-01-01",
        "retries": 4,
    }
    properties = {"correlation_id": "t", "reply_to": "replies", "priority": 3, "delivery_mode": 2, "expiration": "1"}
    one = letter(
        queue=broker.queue,
        body=body,
        content_type=content_type,
        content_encoding=encoding,
        headers=headers,
        properties=properties,
    )
    store.put(one)

    report = run(app, store)

    assert (report.sent, report.refused, report.failed) == (1, {}, {})
    (wire,) = arrived(app, broker.queue, 1)
    assert wire.body == body
    assert wire.content_type == (content_type or "application/octet-stream")
    assert {name: wire.headers[name] for name in ("task", "id", "own")} == {
        name: headers[name] for name in ("task", "id", "own")
    }
    assert (wire.headers["eta"], wire.headers["retries"]) == (None, 0)
    assert {name: wire.properties[name] for name in ("correlation_id", "reply_to", "priority")} == {
        "correlation_id": "t",
        "reply_to": "replies",
        "priority": 3,
    }
    mark = Marks.read(wire.headers).redrive
    assert mark is not None
    assert store.accept_start(one.id, token=mark[1])


def test_a_body_that_was_still_compressed_goes_as_it_is(
    app: Celery, store: InMemoryDeadLetterStore, broker: Broker
) -> None:
    """Decompressing it failed here; a worker that knows the method may do better."""
    declare(app, broker.queue)
    squeezed = zlib.compress(b"[[], {}, {}]") + b"damaged"
    headers = {"task": "shop.charge", "id": "t", "compression": "application/x-unheard-of"}
    store.put(letter(queue=broker.queue, body=squeezed, body_compressed=True, headers=headers))

    assert run(app, store).sent == 1

    with app.connection_for_read() as connection:
        message = until(lambda: connection.default_channel.basic_get(broker.queue, no_ack=True), what="the message")
        assert connection.default_channel.message_to_python(message).headers["compression"] == headers["compression"]


def test_many_are_sent_in_order(app: Celery, store: InMemoryDeadLetterStore, broker: Broker) -> None:
    """Three hundred, each once, oldest first."""
    declare(app, broker.queue)
    bodies = [json.dumps([[number], {}, {}]).encode() for number in range(300)]
    for body in bodies:
        store.put(letter(queue=broker.queue, body=body))

    assert run(app, store).sent == 300

    assert [wire.body for wire in arrived(app, broker.queue, 300)] == bodies


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_rabbitmq_refuses_what_it_would_throw_away(app: Celery, store: InMemoryDeadLetterStore, broker: Broker) -> None:
    """
    A message to a queue that does not exist is gone without a word. So the letter
    is refused, in a dry run too, and those of other queues go on.
    """
    declare(app, broker.queue)
    good, lost = letter(queue=broker.queue), letter(queue="no-such-queue")
    store.put(lost)
    store.put(good)
    expected = {lost.id: "the broker has no queue 'no-such-queue'. Create it, or name another one (--to-queue)."}

    assert run(app, store, dry_run=True).refused == expected
    report = run(app, store)

    assert (report.sent, report.refused) == (1, expected)
    assert store.get(lost.id).state == "dead"
    assert run(app, store, to_queue=broker.queue).sent == 1


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_redis_makes_the_queue(app: Celery, store: InMemoryDeadLetterStore, broker: Broker) -> None:
    """Nothing is lost there, so nothing is refused."""
    store.put(letter(queue=broker.queue))
    assert run(app, store).sent == 1
    assert len(arrived(app, broker.queue, 1)) == 1


@pytest.mark.chaos
@pytest.mark.mortal
def test_a_broker_that_is_gone_stops_the_redrive_and_costs_nothing(
    app: Celery, store: InMemoryDeadLetterStore, broker: Broker
) -> None:
    """Nothing is marked as sent; when the broker is back, all of it is sent."""
    declare(app, broker.queue)
    ids = [letter(queue=broker.queue).id for _ in range(5)]
    for one in ids:
        store.put(letter(one, queue=broker.queue))
    broker.server.kill()

    report = run(app, store)

    assert report.sent == 0
    assert report.stopped is not None
    assert {store.get(one).state for one in ids} == {"dead"}

    broker.server.start()
    declare(app, broker.queue)
    assert until(lambda: run(app, store).sent, within=60, what="the broker to take them") == 5
