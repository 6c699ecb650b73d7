"""Which arguments a new queue gets, and which queues are left alone."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from celery_hardened.dead_letter.amqp_policy import is_ours, policy_command, quorum_arguments, why_classic


def test_a_plain_queue() -> None:
    """A queue without arguments gets type, limit and a dead letter exchange that loses nothing on the way."""
    assert quorum_arguments("orders", {}, limit=25) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 25,
        "x-dead-letter-exchange": "hardened.dlx.orders",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-delivery-limit": 100},
        {"x-message-ttl": 5000},
        {"x-dead-letter-exchange": "mine", "x-dead-letter-routing-key": "dead"},
        {"x-dead-letter-strategy": "at-most-once"},
        {"x-max-length": 10},
        {"x-overflow": "drop-head"},
    ],
)
def test_what_the_user_set_stays(arguments: dict[str, Any]) -> None:
    """No argument of the user's is changed."""
    made = quorum_arguments("orders", arguments, limit=20)

    assert arguments.items() <= made.items()
    assert made["x-queue-type"] == "quorum"


@pytest.mark.parametrize("bound", ["x-max-length", "x-max-length-bytes"])
def test_what_happens_at_a_maximum_stays(bound: str) -> None:
    """A bounded queue still drops its oldest messages: "reject-publish" would refuse new ones instead."""
    assert "x-overflow" not in quorum_arguments("orders", {bound: 10}, limit=20)


def test_a_dead_letter_exchange_of_the_users_is_not_given_our_strategy() -> None:
    """A user who routes dead letters himself gets type and limit, and nothing of ours on top."""
    made = quorum_arguments("orders", {"x-dead-letter-exchange": "mine"}, limit=20)

    assert made == {"x-dead-letter-exchange": "mine", "x-queue-type": "quorum", "x-delivery-limit": 20}


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-priority": 10},
        {"x-queue-mode": "lazy"},
        {"x-queue-version": 2},
        {"x-queue-type": "classic"},
        {"x-queue-type": "stream"},
    ],
)
def test_what_a_quorum_queue_cannot_be(arguments: dict[str, Any]) -> None:
    """A queue with an argument that quorum queues refuse, or of another type, stays what its user said."""
    name, value = next(iter(arguments.items()))

    assert why_classic(arguments) == f"{name}={value}"


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "quorum"}, {"x-message-ttl": 1}])
def test_what_can_be_one(arguments: dict[str, Any]) -> None:
    """All others may be quorum queues."""
    assert why_classic(arguments) is None


@pytest.mark.parametrize(
    ("change", "ours"),
    [
        ({}, True),
        ({"durable": False}, False),
        ({"exclusive": True}, False),
        ({"auto_delete": True}, False),
        ({"name": ""}, False),
        ({"name": "orders.dlq"}, False),
        ({"name": "n" * 242}, True),
        ({"name": "n" * 243}, False),
    ],
)
def test_kinds_of_queues(change: dict[str, Any], ours: bool) -> None:
    """Events, replies, broadcasts, dead letter queues and names too long for an exchange are left alone."""
    assert is_ours(**{"durable": True, "exclusive": False, "auto_delete": False, "name": "orders", **change}) is ours


@pytest.mark.parametrize("queue", ["orders", "eu.orders+retry", "it's here", "a b", "(x|y)$"])
def test_the_command_names_exactly_this_queue(queue: str) -> None:
    """Whatever the name, a shell hands the command over in one piece, and its pattern matches this queue alone."""
    command = shlex.split(policy_command(queue, "/"))

    pattern, definition = command[-2:]
    assert command[:4] == ["rabbitmqctl", "set_policy", "--vhost", "/"]
    assert re.search(pattern, queue)
    assert not re.search(pattern, queue + "x")
    assert not re.search(pattern, "x" + queue)
    assert json.loads(definition) == {"dead-letter-exchange": "", "dead-letter-routing-key": queue + ".dlq"}
