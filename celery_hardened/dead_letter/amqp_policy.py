"""What a new AMQP queue is declared with, and what is left as its user said. Pure.

A queue that is new becomes a quorum queue with a delivery limit, a dead letter
exchange of its own, ``hardened.dlx.<queue>``, and a dead letter queue bound to
it, ``<queue>.dlq``. A queue that exists is never declared again: with other
arguments that is PRECONDITION_FAILED, and every process that does it is dead.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

#: Arguments a quorum queue refuses; who sets one wants a classic queue.
_CLASSIC_ONLY = ("x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator")

#: The limit of a dead letter queue. A letter waits there for as long as the store is down,
#: and from RabbitMQ 4.0 on a quorum queue without a limit of its own drops what came back 20 times.
_NO_LIMIT = 2**31 - 1

#: Longest name AMQP can carry.
_NAME_MAX = 255

DLQ_SUFFIX = ".dlq"
_DLX_PREFIX = "hardened.dlx."


def dead_letter_queue(queue: str) -> str:
    """Name of the queue that gets what the broker takes out of *queue*."""
    return queue + DLQ_SUFFIX


def dead_letter_exchange(queue: str) -> str:
    """Name of the exchange on the way there. It exists only if we made *queue*, and so says that we did."""
    return _DLX_PREFIX + queue


def is_ours(*, durable: bool, exclusive: bool, auto_delete: bool, name: str) -> bool:
    """May a queue of this kind be a quorum queue? Events, replies and broadcasts may not."""
    return (
        durable
        and not exclusive
        and not auto_delete
        and bool(name)
        and not name.endswith(DLQ_SUFFIX)
        and len(dead_letter_exchange(name).encode()) <= _NAME_MAX
    )


def why_classic(arguments: Mapping[str, Any]) -> str | None:
    """The argument that keeps a queue what its user said, or ``None`` if it may be a quorum queue."""
    if arguments.get("x-queue-type", "quorum") != "quorum":
        return f"x-queue-type={arguments['x-queue-type']}"
    return next((f"{name}={arguments[name]}" for name in _CLASSIC_ONLY if name in arguments), None)


def has_own_exchange(arguments: Mapping[str, Any]) -> bool:
    """Does the user say himself where the queue's dead letters go?"""
    return "x-dead-letter-exchange" in arguments


def quorum_arguments(name: str, arguments: Mapping[str, Any], *, limit: int) -> dict[str, Any]:
    """Arguments of a new quorum queue. Whatever the user set stays."""
    made: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": limit, **arguments}
    if has_own_exchange(made):
        return made
    made["x-dead-letter-exchange"] = dead_letter_exchange(name)
    bounded = any(key in made for key in ("x-max-length", "x-max-length-bytes", "x-overflow"))
    if not bounded:
        # At least once needs "reject-publish", which means nothing without a maximum length
        # and would change what happens at one.
        made.setdefault("x-dead-letter-strategy", "at-least-once")
        if made["x-dead-letter-strategy"] == "at-least-once":
            made["x-overflow"] = "reject-publish"
    return made


def dead_letter_queue_arguments() -> dict[str, Any]:
    """Arguments of a new dead letter queue."""
    return {"x-queue-type": "quorum", "x-delivery-limit": _NO_LIMIT}


def policy_command(queue: str, vhost: str) -> str:
    """The shell command that gives an existing queue the dead letter queue it has not."""
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": dead_letter_queue(queue)}
    words = [
        "rabbitmqctl", "set_policy", "--vhost", vhost, "--apply-to", "queues",
        f"hardened-{queue}", f"^{_escaped(queue)}$", json.dumps(definition),
    ]  # fmt: skip
    return shlex.join(words)


def _escaped(name: str) -> str:
    """*name* as a pattern for the broker's regular expressions."""
    return re.sub(r"([\\.^$|()\[\]{}*+?])", r"\\\1", name)
