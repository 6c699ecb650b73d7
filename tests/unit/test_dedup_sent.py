"""Whether a failed publish may have sent its message."""

from __future__ import annotations

import socket

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import EncodeError, OperationalError
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_hardened import PayloadTooLargeError
from celery_hardened.dedup.sent import nothing_was_sent
from tests.support.ports import free_port

REFUSED = ConnectionRefusedError(111, "Connection refused")
RESET = ConnectionResetError(104, "Connection reset by peer")


@pytest.mark.parametrize(
    "error",
    [
        EncodeError("no JSON"),
        TypeError("not serializable"),
        PayloadTooLargeError("shop.work", 2, 1, False),
        KeyError("no such queue"),
        REFUSED,
        OSError(113, "No route to host"),
        socket.gaierror(-2, "Name or service not known"),
    ],
    ids=repr,
)
def test_a_message_that_was_not_made_or_had_no_connection_was_not_sent(error: BaseException) -> None:
    assert nothing_was_sent(error, handled=None)


@pytest.mark.parametrize(
    "error",
    [
        RESET,
        BrokenPipeError(32, "Broken pipe"),
        TimeoutError("timed out"),
        RedisTimeoutError("Timeout reading from socket"),
        RedisConnectionError("Connection closed by server."),
        OperationalError("something"),
        RuntimeError("something"),
        SoftTimeLimitExceeded(),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_whatever_is_not_known_may_have_been_sent(error: BaseException) -> None:
    """A signal or a time limit can come between the send and its answer too."""
    assert not nothing_was_sent(error, handled=None)


def test_the_error_under_the_clients_error_counts() -> None:
    """As kombu and redis-py wrap it."""
    for cause, expected in ((REFUSED, True), (RESET, False)):
        inner = RedisConnectionError("Error connecting")
        inner.__context__ = cause
        cause.__context__ = None
        outer = OperationalError("Error connecting")
        outer.__cause__ = inner
        assert nothing_was_sent(outer, handled=None) is expected


def test_a_first_try_that_broke_off_counts_though_the_second_was_refused() -> None:
    """It may have arrived before the connection broke."""
    for broke in (ConnectionResetError(104, "reset"), RedisConnectionError("Connection closed by server.")):
        refused = ConnectionRefusedError(111, "refused")
        refused.__context__ = broke
        outer = OperationalError("refused")
        outer.__cause__ = refused
        assert not nothing_was_sent(outer, handled=None)


def test_a_second_try_that_broke_off_counts_though_the_first_was_refused() -> None:
    """The other way round."""
    broke = ConnectionResetError(104, "reset")
    broke.__context__ = ConnectionRefusedError(111, "refused")
    outer = OperationalError("reset")
    outer.__cause__ = broke
    assert not nothing_was_sent(outer, handled=None)


def test_what_the_caller_was_handling_does_not_count() -> None:
    """A publish from an ``except`` block of the caller's own."""
    own = RuntimeError("the caller's trouble")
    refused = ConnectionRefusedError(111, "refused")
    refused.__context__ = own
    assert nothing_was_sent(refused, handled=own)
    assert not nothing_was_sent(refused, handled=None)


def test_a_refused_connection_of_redis_is_recognised() -> None:
    """By the errors that the client raises today; an empty pool is in their context."""
    with pytest.raises(RedisConnectionError) as caught:
        Redis(port=free_port(), retry=None).ping()
    assert nothing_was_sent(caught.value, handled=None)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{port}/0", "amqp://127.0.0.1:{port}//"], ids=["redis", "amqp"])
def test_a_broker_that_is_not_there_was_sent_nothing(url: str) -> None:
    """As the publish of each client fails, with a second try and without."""
    app = Celery("shop", broker=url.format(port=free_port()), set_as_current=False)
    for retry in (False, True):
        with pytest.raises(OperationalError) as caught:
            app.send_task("work", retry=retry, retry_policy={"max_retries": 1, "interval_start": 0})
        assert nothing_was_sent(caught.value, handled=None)
