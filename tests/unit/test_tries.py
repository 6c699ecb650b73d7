"""What a publish knows of its tries, whoever repeats them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection, Producer, Queue

from celery_hardened.beat.store import NotLeaderError
from celery_hardened.dedup.sent import nothing_was_sent
from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.pipeline.tries import all_tries

REFUSED = "Connection refused"


@pytest.fixture
def producer() -> Iterator[Producer]:
    with Connection("memory://") as connection:
        yield connection.Producer()


def failing(producer: Any, where: str, *errors: BaseException | None) -> None:
    """Have the channel fail in one of its functions, once with each of *errors*; ``None``: it does its work."""
    left = list(errors)
    real = getattr(producer.channel, where)

    def fail(*args: Any, **options: Any) -> Any:
        error = left.pop(0) if left else None
        if error is not None:
            raise error
        return real(*args, **options)

    setattr(producer.channel, where, fail)


def refused() -> ConnectionRefusedError:
    return ConnectionRefusedError(111, REFUSED)


def certain(producer: Any, publish: Callable[[], object]) -> bool:
    """Is it certain of a *publish* that fails?"""
    with pytest.raises(Exception) as caught, all_tries(producer):  # noqa: PT011
        publish()
    return nothing_was_sent(caught.value, handled=None)


def one(producer: Any) -> None:
    producer.publish("it", routing_key="q", declare=[Queue("q")])


def repeated(producer: Any, times: int = 2) -> None:
    """As a loop whose tries do not see each other's errors."""
    for turn in range(times):
        try:
            one(producer)
        except Exception:
            if turn == times - 1:
                raise


@pytest.mark.parametrize("where", ["prepare_message", "queue_declare"])
def test_a_try_that_ends_before_the_message_is_handed_over_has_sent_nothing(producer: Producer, where: str) -> None:
    failing(producer, where, refused(), refused())
    assert certain(producer, lambda: repeated(producer))


def test_a_refused_connection_says_nothing_of_a_message_that_was_handed_over(producer: Producer) -> None:
    """The client may have tried before, by itself."""
    failing(producer, "_put", refused())
    assert not certain(producer, lambda: one(producer))


@pytest.mark.parametrize("error", [TypeError("no"), AttributeError("no"), StoreUnavailableError("a step", "gone")])
def test_nor_does_any_other_error_from_there(producer: Producer, error: Exception) -> None:
    """One that would be certain elsewhere: the first of two queues may have it."""
    failing(producer, "_put", error)
    assert not certain(producer, lambda: one(producer))


def test_a_refusal_of_ours_is_certain_there_too(producer: Producer) -> None:
    failing(producer, "_put", ConfigurationError("not this one"))
    assert certain(producer, lambda: one(producer))


def test_what_an_earlier_try_may_have_sent_is_not_forgotten(producer: Producer) -> None:
    failing(producer, "_put", ConnectionResetError(104, "reset"))
    one_more = [None, refused()]
    failing(producer, "prepare_message", *one_more)
    assert not certain(producer, lambda: repeated(producer))
    failing(producer, "prepare_message", refused())
    assert certain(producer, lambda: one(producer)), "nor is it remembered of the next publish"


def test_what_fails_after_the_message_does_not_unsay_it(producer: Producer) -> None:
    """The event of a message, say, by the same producer."""

    def both() -> None:
        one(producer)
        failing(producer, "prepare_message", refused())
        one(producer)

    assert not certain(producer, both)


def test_a_publish_inside_of_another_is_its_own(producer: Producer) -> None:
    """By a receiver of a signal, before the message."""

    def outer() -> None:
        with all_tries(producer):
            one(producer)
        failing(producer, "prepare_message", refused())
        one(producer)

    assert certain(producer, outer)


def test_an_error_with_attributes_of_its_own_is_marked(producer: Producer) -> None:
    class SealedError(ConnectionRefusedError):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    failing(producer, "_put", SealedError(111, REFUSED))
    assert not certain(producer, lambda: one(producer))


def test_a_producer_stays_what_it_is(producer: Producer) -> None:
    """It is changed once, works outside of a publish of ours, and can be pickled; other things are left alone."""
    with all_tries(producer):
        one(producer)
    changed = type(producer)
    with all_tries(producer):
        one(producer)
    assert type(producer) is changed
    assert isinstance(producer, Producer)
    one(producer)
    assert type(pickle.loads(pickle.dumps(producer))) is Producer
    stranger = object()
    with all_tries(stranger):
        pass
    assert type(stranger) is object


def test_an_error_that_is_not_ours_leaves_unmarked(producer: Producer) -> None:
    """No try has begun."""
    with pytest.raises(NotLeaderError) as caught, all_tries(producer):
        raise NotLeaderError("no")
    assert "_hardened_may_have_sent" not in vars(caught.value)
