"""From which queue did a message come? It goes back there, and a wrong answer loses it."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Exchange, Queue, binding

from celery_hardened.wire import source_queue

TOPIC, DIRECT, FANOUT = Exchange("topic", "topic"), Exchange("direct", "direct"), Exchange("fan", "fanout")

QUEUES = {
    queue.name: queue
    for queue in (
        Queue("celery"),
        Queue("orders", TOPIC, routing_key="orders.#"),
        Queue("eu", TOPIC, routing_key="*.eu"),
        Queue("media", DIRECT, routing_key="celery"),
        Queue("all", FANOUT),
        Queue("two", [binding(DIRECT, routing_key="one"), binding(DIRECT, routing_key="other")]),
    )
}

TABLE = [
    ("", "celery", "celery"),
    ("topic", "orders.eu", "orders"),
    ("topic", "orders.eu.fr", "orders"),
    ("topic", "invoices.eu", "eu"),
    ("direct", "celery", "media"),
    ("direct", "other", "two"),
    ("fan", "whatever", "all"),
    ("", "nobody's", "nobody's"),
    ("topic", "invoices.eu.fr", "invoices.eu.fr"),
]


@pytest.mark.parametrize(("exchange", "key", "expected"), TABLE)
def test_the_bindings_tell(exchange: str, key: str, expected: str) -> None:
    """Each kind of exchange by its own rules; a queue that bears the key as its name comes after those bound by it."""
    assert source_queue({"exchange": exchange, "routing_key": key}, tags={}, queues=QUEUES) == expected


def test_the_consumer_tag_knows_better() -> None:
    """AMQP names the consumer, so there is nothing to work out."""
    info: dict[str, Any] = {"consumer_tag": "3", "exchange": "topic", "routing_key": "orders.eu"}
    assert source_queue(info, tags={"celery": "1", "eu": "3"}, queues=QUEUES) == "eu"


def test_a_worker_of_one_queue_needs_no_telling() -> None:
    """Whatever is in the message."""
    assert source_queue({}, tags={}, queues={"celery": QUEUES["celery"]}) == "celery"
