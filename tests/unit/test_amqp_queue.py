"""A queue that looks first is otherwise the queue it was made of."""

from __future__ import annotations

import copy
import pickle

import pytest
from kombu import Connection, Exchange, Queue

from celery_hardened.dead_letter.amqp_queue import LookFirst, look_first


class Own(Queue):
    """A user's own class of queues."""


@pytest.mark.parametrize("cls", [Queue, Own])
def test_copies(cls: type[Queue]) -> None:
    """Copies, pickles and dicts of such a queue are as good as it is."""
    queue = look_first(
        cls("orders", Exchange("shop"), "o", max_length=3, on_declared=print, alias="a"), delivery_limit=30
    )

    for other in (copy.copy(queue), pickle.loads(pickle.dumps(queue))):
        assert isinstance(other, LookFirst)
        assert isinstance(other, cls)
        assert (other, other.delivery_limit, other.max_length, other.alias) == (queue, 30, 3, "a")
    assert queue.on_declared is print
    plain = Queue.from_dict("orders", **{k: v for k, v in queue.as_dict(recurse=True).items() if k != "name"})
    assert (plain.name, plain.routing_key) == ("orders", "o")
    assert hash(queue) == hash(cls("orders"))


def test_look_first_twice() -> None:
    """One that looks first already is taken as it is."""
    queue = look_first(Queue("orders"), delivery_limit=20)

    assert look_first(queue, delivery_limit=99) is queue


def test_other_transports_are_untouched() -> None:
    """On a broker other than AMQP such a queue is declared like any other."""
    with Connection("memory://") as connection, connection.channel() as channel:
        queue = look_first(Queue("orders", Exchange("shop"), "o"), delivery_limit=20)(channel)

        assert queue.declare() == "orders"
        connection.Producer(channel).publish("x", exchange="shop", routing_key="o")
        assert queue.get(no_ack=True).payload == "x"
