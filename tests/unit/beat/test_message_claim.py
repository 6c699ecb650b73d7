"""What a claim's answer means to the publish around it, and which message is whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_hardened import harden
from celery_hardened.beat.steps import Outgoing
from celery_hardened.beat.store import NotLeaderError
from celery_hardened.dedup.sent import nothing_was_sent
from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.beat_broker import is_capturable, same_redis
from celery_hardened.pipeline.beat_channel import (
    Capture,
    CapturingChannel,
    ClaimFailedError,
    SlotRefusedError,
    capturing_connection,
    compose_capturing,
)
from celery_hardened.pipeline.publish import FireMarks, stamped
from celery_hardened.redis_connection import connect

PUSH = Outgoing("LPUSH", "celery", b"{}")


def capture_of(claim: Any) -> Capture:
    return Capture("id-1", "shop.bill", claim)


def handed_over(error: Exception) -> tuple[Capture, BaseException]:
    """What comes out of a publish whose claim raises *error*."""

    def claim(_: Sequence[Outgoing]) -> None:
        raise error

    capture = capture_of(claim)
    with pytest.raises((SlotRefusedError, ClaimFailedError)) as caught:
        capture.hand_over([PUSH])
    return capture, caught.value


@pytest.mark.parametrize("error", [SlotRefusedError("s"), NotLeaderError("s"), ConfigurationError("s")])
def test_after_a_refusal_nothing_was_sent_for_certain(error: Exception) -> None:
    """So that windows and payloads of that publish are taken back at once."""
    capture, raised = handed_over(error)
    assert nothing_was_sent(raised, handled=None)
    assert capture.failed is error
    assert not capture.claimed


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("firing", "gone"),
        RedisConnectionError("gone"),
        ConnectionRefusedError(111, "no"),
        ValueError(),
    ],
    ids=["store", "redis", "refused", "bug"],
)
def test_after_a_claim_without_an_answer_it_is_not_known_what_was_sent(error: Exception) -> None:
    """Redis may have pushed the message, and another try of the client may have been refused."""
    capture, raised = handed_over(error)
    assert not nothing_was_sent(raised, handled=None)
    assert capture.failed is error
    assert not capture.claimed


def test_a_claim_is_not_asked_again_after_a_refusal_but_after_no_answer() -> None:
    """A task's own ``apply_async`` may publish again after an error."""
    answers: list[Exception | None] = [StoreUnavailableError("firing", "gone"), SlotRefusedError("no"), None]
    asked = []

    def claim(pushes: Sequence[Outgoing]) -> None:
        asked.append(pushes)
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    capture = capture_of(claim)
    with pytest.raises(ClaimFailedError):
        capture.hand_over([PUSH])
    for _ in range(2):
        with pytest.raises(SlotRefusedError):
            capture.hand_over([PUSH])
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("headers", "correlation", "concerns"),
    [
        ({"id": "id-1", "task": "other"}, "x", True),
        ({"id": "x", "task": "shop.bill"}, "x", True),
        ({}, "id-1", True),  # protocol 1
        ({"id": "x", "task": "other"}, "x", False),
        ({"hostname": "w"}, None, False),  # an event
    ],
)
def test_the_message_of_a_fire_is_known_by_id_or_task(headers: Any, correlation: Any, concerns: bool) -> None:
    """Also one whose id a task's own ``apply_async`` has changed, and one of the first protocol."""
    message = {"headers": headers, "properties": {"correlation_id": correlation}}
    assert capture_of(lambda pushes: None).concerns(message) is concerns


# --- marks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fire",
    [
        FireMarks(slot=1.5, schedule="nightly"),
        FireMarks(slot=0.0, schedule="é", missed=3, run="schedule:é", once=True),
        FireMarks(slot=0.0, schedule="é", run="schedule:é", yields=True),
    ],
)
def test_a_fires_header_is_what_marks_would_write(fire: FireMarks) -> None:
    """The same fields in the same order, with a copied header and without."""
    fresh = stamped({"a": 1}, now=7.0, again=False, fire=fire)
    copied = stamped({"a": 1, HEADER: {"v": 1, "key": "k", "deaths": 3}}, now=7.0, again=False, fire=fire)
    assert fresh == {"a": 1, HEADER: fire.header(7.0)}
    assert list(Marks.read(fresh).header().items()) == list(fire.header(7.0).items())
    assert copied[HEADER] == {**fire.header(7.0), "key": "k"}


def test_the_header_of_another_fire_is_not_handed_on() -> None:
    """A task that copies its own headers to another one does not make that one a run of its schedule."""
    fire = FireMarks(slot=1.0, schedule="s", run="schedule:s", once=True, yields=True)
    fired = stamped({}, now=7.0, again=False, fire=fire)
    assert stamped(fired, now=8.0, again=False)[HEADER] == {"v": 1, "published": 8.0, "first_published": 8.0}


# --- which broker -------------------------------------------------------------------------------------


def app_of(url: str, **conf: Any) -> Celery:
    app = harden(Celery("shop", broker=url, set_as_current=False))
    app.conf.update(conf)
    return app


@pytest.mark.parametrize(
    ("url", "capturable"),
    [
        ("redis://h/0", True),
        ("rediss://h/0", True),
        ("sentinel://a;sentinel://b", True),
        ("redis://a;redis://b", False),
        ("memory://", False),
        ("amqp://h//", False),
    ],
)
def test_one_redis_by_kombu_can_be_captured(url: str, capturable: bool) -> None:
    """Nothing is connected to find out; a list to fail over to has no one server for a script."""
    assert is_capturable(app_of(url)) is capturable


def test_every_channel_of_the_connection_captures_and_that_of_no_other() -> None:
    """A clone and a pool of it too: it is the class of its channels."""
    app = app_of("redis://h/0")
    for connection in (capturing_connection(app), capturing_connection(app).clone()):
        assert issubclass(connection.get_transport_cls().Channel, CapturingChannel)
    other = app.connection_for_write().get_transport_cls()
    assert not issubclass(other.Channel, CapturingChannel)
    assert compose_capturing(compose_capturing(other)) is compose_capturing(other)


def client(url: str, **conf: Any) -> Any:
    app = app_of(url, **conf)
    return connect(app, Hardening.of(app).settings)


MASTER = {"broker_transport_options": {"master_name": "m"}}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("redis://h/0", {}), ("redis://:secret@H:6379", {}), True),
        (("redis://h/0", {}), ("redis://h/1", {}), False),
        (("redis://h/0", {}), ("redis://h:6380/0", {}), False),
        (("redis+socket:///run/r", {}), ("redis+socket:///run/r", {}), True),
        (("redis+socket:///run/r", {}), ("redis+socket:///run/r?virtual_host=2", {}), False),
        (("redis+socket:///run/r", {}), ("redis://h/0", {}), False),
        (("sentinel://a;sentinel://b", MASTER), ("sentinel://b;sentinel://a", MASTER), True),
        (("sentinel://a", MASTER), ("sentinel://a", {"broker_transport_options": {"master_name": "n"}}), False),
    ],
)
def test_the_same_redis_is_the_same_server_and_database(one: Any, other: Any, same: bool) -> None:
    """By what the clients were told; nobody is asked."""
    assert same_redis(client(one[0], **one[1]), client(other[0], **other[1])) is same
