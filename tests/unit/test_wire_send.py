"""What is sent again is sent as it was; what belonged to one delivery stays behind."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery

from celery_hardened.wire import capture, send


@pytest.fixture
def app() -> Celery:
    return Celery("wire", broker="memory://", set_as_current=False)


def sent_again(app: Celery, **properties: Any) -> Any:
    """Send a message with *properties* to a queue of its own, and fetch it."""
    queue = f"wire-{sorted(properties)}"
    send(
        app, body=b"[1]", body_compressed=False, content_type="application/json", content_encoding="utf-8",
        headers={"id": "t1", "redelivered": True}, properties=properties, exchange="", routing_key=queue,
    )  # fmt: skip
    with app.connection() as connection:
        message = connection.SimpleQueue(queue).get(timeout=5)
        message.ack()
        return capture(message)


@pytest.mark.parametrize(("on_the_wire", "again"), [("60000", "60000"), ("1500", "1500"), ("soon", None), (None, None)])
def test_a_time_to_live_is_sent_as_it_was(app: Celery, on_the_wire: object, again: str | None) -> None:
    """It arrives as a string of milliseconds; kombu wants seconds and multiplies."""
    assert sent_again(app, expiration=on_the_wire).properties.get("expiration") == again


def test_the_time_of_publish_is_this_publishs(app: Celery) -> None:
    """RabbitMQ tells the age of a queue by it: a letter of last week that is sent again has not waited since then."""
    before = int(time.time())
    assert before <= sent_again(app, timestamp=1).properties["timestamp"] <= time.time()
    assert "timestamp" not in sent_again(app, priority=3).properties


def test_what_belongs_to_one_delivery_stays_behind(app: Celery) -> None:
    """A delivery tag used twice would let two messages share one entry of what is unacked."""
    wire = sent_again(app, delivery_tag="old", correlation_id="c1", application_headers={"a": 1})
    assert wire.delivery_tag != "old"
    assert wire.properties["correlation_id"] == "c1"
    assert (wire.body, dict(wire.headers)) == (b"[1]", {"id": "t1"})
