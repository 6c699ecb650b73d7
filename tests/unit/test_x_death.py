"""What RabbitMQ says of a message it took out of a queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_hardened.dead_letter.broker_letter import dispose
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.x_death import broker_death, sentence, verdict
from celery_hardened.wire import Wire

#: As the AMQP client hands it over: UTC, without saying so.
AT = datetime(2026, 11, 29, 12, 0)  # noqa: DTZ001


def death(queue: str = "orders", reason: str = "rejected", **changes: Any) -> dict[str, Any]:
    return {"queue": queue, "reason": reason, "count": 1, "exchange": "", "routing-keys": [queue], "time": AT} | changes


def message(*deaths: dict[str, Any], **headers: Any) -> Wire:
    return Wire(
        body=b"[[], {}, {}]",
        body_compressed=False,
        content_type="application/json",
        content_encoding="utf-8",
        headers={"task": "shop.charge", "id": "t1", "retries": 1, "x-death": list(deaths), **headers},
        properties={},
        exchange="hardened.dlx.orders",
        routing_key="orders",
        delivery_tag="1",
        redelivered=False,
    )


def disposed(wire: Wire, deaths: Callable[[DeadLetter], int] = lambda _: 0) -> tuple[DeadLetter, bool]:
    found = dispose(wire, queue="orders", recorded_deaths=deaths, now=7.0, worker="celery@a", version=None)
    return found.letter, found.go_back


@pytest.mark.parametrize(
    ("reason", "letter"),
    [("rejected", "rejected"), ("expired", "expired_horizon"), ("maxlen", "rejected"), ("new-in-5.0", "rejected")],
)
def test_reasons(reason: str, letter: str) -> None:
    """Each of the broker's reasons has one of ours, and is named in the error."""
    made, go_back = disposed(message(death(reason=reason)))

    assert (made.reason, go_back) == (letter, False)
    assert made.error_type == f"broker.{reason}"
    assert "'orders'" in made.error_message


def test_the_delay_queues_of_a_countdown_are_not_where_it_died() -> None:
    """A task with a countdown "expired" in delay queues before. The queue it was drained from counts."""
    delays = [death("celery_delayed_2", "expired"), death("celery_delayed_0", "expired")]
    own = death("orders", "rejected", exchange="celery_delayed_delivery", **{"routing-keys": ["0.1.orders"]})
    letter, _ = disposed(message(own, *delays, **{"x-first-death-queue": "celery_delayed_2"}))

    assert (letter.reason, letter.queue) == ("rejected", "orders")
    assert (letter.exchange, letter.routing_key) == ("", "orders")


def test_it_is_dated_by_the_broker() -> None:
    """The letter's time is that of the death, not of the drain, which may be days later."""
    letter, _ = disposed(message(death()))

    assert letter.last_failed == 1795953600.0
    assert letter.attempts == ()


def test_its_id_is_the_one_a_worker_gives() -> None:
    """Task id, redrives and attempt make the id, whoever writes the letter."""
    letter, _ = disposed(message(death(), hardened={"v": 1, "redrives": 2}))

    assert letter.id == "t1-2-1"


def test_over_the_limit_without_a_death_it_goes_back() -> None:
    """The delivery limit alone convicts nobody."""
    _, go_back = disposed(message(death(reason="delivery_limit")))

    assert go_back


def test_over_the_limit_with_a_death_it_is_poison() -> None:
    """With one recorded, by the store or in the message, it does."""
    recorded, go_back = disposed(message(death(reason="delivery_limit")), lambda _: 3)
    carried, back = disposed(message(death(reason="delivery_limit"), hardened={"v": 1, "deaths": 1}))

    assert (recorded.reason, recorded.deaths, go_back) == ("poison", 3, False)
    assert (carried.reason, carried.deaths, back) == ("poison", 1, False)


def test_the_store_is_asked_only_about_the_limit() -> None:
    """A rejected message needs no look into the store of deaths."""

    def unasked(_: DeadLetter) -> int:
        raise AssertionError

    disposed(message(death()), unasked)


def test_what_is_no_task_is_malformed() -> None:
    """Without task or id it cannot go back, whatever the broker says."""
    wire = message(death(reason="delivery_limit"), id=None)

    assert disposed(wire)[0].reason == "malformed"
    assert not disposed(wire)[1]


@settings(max_examples=100, deadline=None)
@given(
    entries=st.recursive(
        st.none() | st.integers() | st.text(max_size=9) | st.just(AT),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["queue", "reason", "exchange", "routing-keys", "time", "count"]),
                inner | st.just("orders"),
            )
        ),
    )
)
def test_no_header_is_too_odd(entries: Any) -> None:
    """Whatever x-death holds, a verdict comes out, and a sentence."""
    found = broker_death({"x-death": entries}, "orders")

    assert verdict(found, is_task=True, deaths=0)
    assert sentence(found, "orders")
