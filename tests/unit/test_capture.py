"""A letter is built from any message whatsoever."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_hardened.dead_letter.capture import from_wire, identify
from celery_hardened.dead_letter.letter import REASONS, Attempt, DeadLetter, Reason, dump, load
from celery_hardened.marks import Marks
from celery_hardened.wire import Wire

NOW = 1_800_000_000.0

PROTO2 = {
    "task": "shop.charge",
    "id": "t1",
    "root_id": "r1",
    "parent_id": "p1",
    "group": "g1",
    "retries": 2,
    "timelimit": [None, None],
}


def a_wire(**changes: Any) -> Wire:
    plain = Wire(
        body=b'[["i1"], {}, {}]',
        body_compressed=False,
        content_type="application/json",
        content_encoding="utf-8",
        headers=dict(PROTO2),
        properties={"correlation_id": "t1"},
        exchange="",
        routing_key="orders",
        delivery_tag="1",
        redelivered=False,
    )
    return replace(plain, **changes)


def a_letter(wire: Wire, *, reason: Reason = "permanent", **changes: Any) -> DeadLetter:
    options: dict[str, Any] = {
        "error_type": "builtins.ValueError",
        "error_message": "no such invoice",
        "now": NOW,
        "worker": "celery@host",
        "version": "abc",
        "queue": "orders",
        "traceback_max": 400,
    }
    return from_wire(wire, reason=reason, **{**options, **changes})


def test_a_protocol_2_message_is_named_by_its_headers() -> None:
    """Task, ids and retries of a protocol 2 message are those of its headers."""
    letter = a_letter(a_wire())

    assert (letter.task, letter.task_id, letter.attempt) == ("shop.charge", "t1", 2)
    assert (letter.root_id, letter.parent_id, letter.group_id) == ("r1", "p1", "g1")
    assert letter.id == "t1-0-2"


def test_a_protocol_1_message_is_named_by_its_body() -> None:
    """A message without headers is read as protocol 1, whose JSON body names the task."""
    body = json.dumps({"task": "shop.charge", "id": "t1", "args": [], "retries": 1, "taskset": "g1"}).encode()

    who = identify(a_wire(headers={}, body=body))

    assert (who.task, who.task_id, who.group_id, who.retries) == ("shop.charge", "t1", "g1", 1)


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[1, 2]", b"7", b"[" * 100_000, b'{"task": 5, "id": {}}'])
def test_a_body_that_names_nobody_is_nobodys(body: bytes) -> None:
    """Protocol 1 bodies that are no JSON, no object, or name no task leave the letter without one."""
    letter = a_letter(a_wire(headers={}, body=body), reason="malformed")

    assert letter.task_id is None
    assert letter.body == body


def test_the_history_and_this_failure_are_its_attempts() -> None:
    """The attempts of a letter are the failed starts the message carried, then this one."""
    marks = Marks(first_published=1.0, deaths=1, redrives=2, first_failed=5.0, history=((5.0, "celery@a", "IOError"),))
    letter = a_letter(a_wire(headers={**PROTO2, "hardened": marks.header(attempt=2)}))

    assert letter.attempts == (Attempt(5.0, "celery@a", "IOError"), Attempt(NOW, "celery@host", "ValueError"))
    assert (letter.first_published, letter.first_failed, letter.last_failed) == (1.0, 5.0, NOW)
    assert (letter.deaths, letter.redrives, letter.id) == (1, 2, "t1-2-2")


@pytest.mark.parametrize("reason", ["unknown_task", "malformed", "undecodable", "unsent"])
def test_what_never_started_is_no_attempt(reason: Reason) -> None:
    """A message whose body never began has no attempt of its own, but a time of failure."""
    letter = a_letter(a_wire(), reason=reason)

    assert letter.attempts == ()
    assert letter.first_failed == letter.last_failed == NOW


def test_the_attempts_are_bounded() -> None:
    """However long a history somebody sends, twenty attempts are kept: the last ones."""
    history = [[float(n), "w", "E"] for n in range(500)]
    letter = a_letter(a_wire(headers={**PROTO2, "hardened": {"v": 1, "history": history}}))

    assert len(letter.attempts) == 20
    assert letter.attempts[-1].at == NOW


def test_a_long_traceback_loses_its_middle() -> None:
    """Of a traceback above the limit both ends stay."""
    letter = a_letter(a_wire(), traceback="begin" + "x" * 5000 + "end", traceback_max=400)

    assert len(letter.traceback) <= 400
    assert letter.traceback.startswith("begin")
    assert letter.traceback.endswith("end")


# --- one id for one failure ---------------------------------------------------------------------


def test_without_an_id_a_redis_message_is_named_by_its_tag() -> None:
    """A Redis delivery tag is made at publish and stays: it names the message."""
    wire = a_wire(headers={}, body=b"garbage", delivery_tag="0c62e0f9-98f8-4f2e-a52a-57c4d3bb1dcb")

    assert a_letter(wire, reason="malformed").id.startswith("tag-0c62e0f9-98f8-4f2e-a52a-57c4d3bb1dcb")


def test_what_is_no_task_is_not_named_by_an_id_of_its_own() -> None:
    """Two foreign messages about the same thing carry the same "id"; they are two letters."""
    one = a_wire(headers={}, body=b'{"id": "customer-7", "event": "moved"}')
    other = a_wire(headers={}, body=b'{"id": "customer-7", "event": "paid"}')

    assert a_letter(one, reason="malformed").id != a_letter(other, reason="malformed").id


def test_without_an_id_amqp_messages_are_told_apart() -> None:
    """AMQP tags count from 1 in every channel: two messages with tag 1 are two letters."""
    one = a_wire(headers={}, body=b"garbage", delivery_tag="1")
    other = a_wire(headers={}, body=b"rubbish", delivery_tag="1")
    third = a_wire(headers={"lang": "go"}, body=b"garbage", delivery_tag="1")

    assert len({a_letter(wire, reason="malformed").id for wire in (one, other, third)}) == 3


def test_the_brokers_copy_of_a_nameless_message_is_the_same_letter() -> None:
    """A message that comes back, or comes by way of its dead letter queue, is named as before:
    what the broker wrote into it does not count."""
    first = a_wire(headers={"lang": "go"}, body=b"garbage", delivery_tag="1")
    death = [{"queue": "orders", "reason": "rejected", "count": 1}]
    again = a_wire(
        headers={"lang": "go", "x-death": death, "x-first-death-queue": "orders", "x-delivery-count": 3},
        body=b"garbage",
        delivery_tag="7",
        exchange="hardened.dlx.orders",
        redelivered=True,
    )

    assert a_letter(first, reason="malformed").id == a_letter(again, reason="malformed").id


# --- whatever comes -----------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.sampled_from(["\ud800", "a\udfffb", "\0", Decimal("1.5"), datetime(2026, 11, 29)])  # noqa: DTZ001
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
)
named = st.fixed_dictionaries(
    {}, optional={name: values for name in ("task", "id", "root_id", "parent_id", "group", "retries", "x-death")}
)
MARKS = ("v", "first_published", "first_failed", "deaths", "redrives", "redrive", "key", "waited")
marks_like = st.fixed_dictionaries(
    {},
    optional={name: values for name in MARKS}
    | {"history": st.lists(st.lists(values, max_size=4) | values, max_size=30)},
)
garbage_headers = st.builds(
    lambda first, second, marks: {**first, **second, "hardened": marks},
    st.dictionaries(st.text(max_size=9), values, max_size=5),
    named,
    marks_like | values,
)
bodies = st.binary(max_size=60) | values.map(lambda value: json.dumps(value, default=str).encode())


@settings(max_examples=60, deadline=None)
@given(
    headers=garbage_headers,
    properties=st.dictionaries(st.sampled_from(["correlation_id", "message_id", "timestamp", "app_id", "x"]), values),
    body=bodies,
    tag=st.text(max_size=9) | st.integers(0, 99).map(str),
    text=st.text(max_size=50) | st.sampled_from(["\ud800", ""]),
    reason=st.sampled_from(REASONS),
)
def test_no_message_is_too_broken(
    headers: dict[str, Any], properties: dict[str, Any], body: bytes, tag: str, text: str, reason: Reason
) -> None:
    """Any headers, properties, body and error give a letter, the same one each time, that can be written down
    and read back under the same id."""
    wire = a_wire(headers=headers, properties=properties, body=body, delivery_tag=tag, exchange=text, routing_key=text)
    changes = {"error_type": text, "error_message": text, "traceback": text, "worker": text, "queue": text}

    letter = a_letter(wire, reason=reason, **changes)

    assert letter.body == body
    assert letter.id == a_letter(wire, reason=reason, **changes).id
    read = load(dump(letter))
    assert (read.id, read.task, read.task_id, read.body) == (letter.id, letter.task, letter.task_id, body)
    letter.id.encode()
    assert len(letter.attempts) <= 20
