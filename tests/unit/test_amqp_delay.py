"""How a delay is written into a routing key, and read out of a task message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.transport.native_delayed_delivery import calculate_routing_key

from celery_hardened.dead_letter.amqp_delay import delay_key, delayed_queue, seconds_until_due

NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("seconds", [1, 2, 59.8, 3600, 2**28 - 1])
def test_the_key_is_celerys(seconds: float) -> None:
    """A delay is written as Celery's native delayed delivery writes it, and read back as the queue."""
    key = delay_key("eu.orders", seconds)

    assert key == calculate_routing_key(int(seconds), "eu.orders")
    for exchange in ("celery_delayed_delivery", "celery_delayed_0", "celery_delayed_27"):
        assert delayed_queue(exchange, key) == "eu.orders"


def test_a_countdown_loses_nothing_on_its_way() -> None:
    """A countdown of 1 is a little less when it is published, and still a delay of one second."""
    assert delay_key("orders", 0.95) == delay_key("orders", 1)


@pytest.mark.parametrize(
    ("queue", "seconds"),
    [
        ("orders", 0.89),
        ("orders", 0),
        ("orders", 2**28),
        ("orders", float("inf")),
        ("a.*.b", 5),
        ("#", 5),
        ("q" * 200, 5),
    ],
)
def test_what_cannot_be_delayed(queue: str, seconds: float) -> None:
    """Too soon, too late, or a name the topic exchange would misread: then the worker waits, as ever."""
    assert delay_key(queue, seconds) is None


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        ("", "orders"),
        ("celery", "orders"),
        ("celery_delayed_delivery", "0.1.orders"),
        ("celery_delayed_delivery", None),
    ],
)
def test_what_did_not_come_delayed(exchange: str, key: str | None) -> None:
    """Only a key with all its bits by the delivery exchange says that a message came delayed."""
    assert delayed_queue(exchange, key) is None


def unsent(eta: Any, *, protocol: int = 2) -> Any:
    says: Mapping[str, Any] = {"task": "t", "eta": eta}
    return SimpleNamespace(headers=says if protocol == 2 else {}, body=says if protocol == 1 else ([], {}, {}))


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("zone", [timezone.utc, timezone(timedelta(hours=5, minutes=30))])
def test_due(protocol: int, zone: timezone) -> None:
    """The time that is left does not depend on the zone it is written in, nor on the protocol."""
    eta = (NOW + timedelta(seconds=90)).astimezone(zone).isoformat()

    assert seconds_until_due(unsent(eta, protocol=protocol), NOW.timestamp()) == 90


@pytest.mark.parametrize("eta", [None, "", "soon", 5, "2026-11-29T11:00:00+00:00", "2030-01-01T00:00:00"])
def test_not_to_be_delayed(eta: Any) -> None:
    """No time, an odd one, one in the past, or one that does not say its zone: not the broker's business."""
    assert seconds_until_due(unsent(eta), NOW.timestamp()) == 0
