"""Queues that look before they declare: new ones become quorum queues, existing ones stay as they are.

Producers and workers both declare queues, a producer once for each connection
before it publishes. The look is a passive declare on a channel of its own,
because a failed one closes its channel; after that nothing is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from amqp.exceptions import ChannelError, NotFound
from kombu import Queue
from kombu.transport.pyamqp import Channel

from celery_hardened.dead_letter.amqp_policy import (
    dead_letter_exchange,
    dead_letter_queue,
    dead_letter_queue_arguments,
    has_own_exchange,
    is_ours,
    quorum_arguments,
    why_classic,
)

logger = logging.getLogger("celery_hardened.dead_letter")


class LookFirst(Queue):
    """A queue that is declared only if it is not there, and then as a quorum queue.

    ``delivery_limit`` is among kombu's ``attrs`` because kombu copies a queue by them
    whenever it is bound to a channel.
    """

    attrs: tuple[tuple[str, Any], ...] = (*Queue.attrs, ("delivery_limit", int))  # type: ignore[assignment]
    delivery_limit: int

    _composed_of: type[Queue] = Queue

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:
        """Declare the queue if it is not there; only on AMQP, and only a kind that may be a quorum queue."""
        on = channel or self.channel
        if passive or not isinstance(on, Channel) or not may_be_quorum(self):
            return super().queue_declare(nowait, passive, channel)  # type: ignore[no-untyped-call]
        found = look(on, self.name)
        if found is None:
            arguments = prepared_arguments(self, on)
            if why_classic(arguments) is None:
                found = self._declare_quorum(on, arguments)
        if found is None:
            return super().queue_declare(False, False, channel)  # type: ignore[no-untyped-call]
        if self.on_declared:
            self.on_declared(*found)
        return found

    def _declare_quorum(self, channel: Any, arguments: dict[str, Any]) -> Any:
        """Make the queue and all it needs. ``None``: the broker will not have it."""
        made = quorum_arguments(self.name, arguments, limit=self.delivery_limit)
        exchange = dead_letter_exchange(self.name)
        with another_channel(channel) as aside:
            try:
                # First the exchange, which says that the queue is ours: killed after the next
                # line, we would otherwise leave a quorum queue that nobody knows for one.
                aside.exchange_declare(exchange, "fanout", durable=True, auto_delete=False)
                found = aside.queue_declare(self.name, durable=True, auto_delete=False, arguments=made)
            except ChannelError as refusal:
                return self._kept(channel, aside, refusal)
            if not has_own_exchange(arguments):
                bind_dead_letter_queue(aside, self.name)
            return found

    def _kept(self, channel: Any, aside: Any, refusal: ChannelError) -> Any:
        """The broker refused: another process was faster and declared it otherwise, or it cannot be."""
        found = look(channel, self.name)
        try:
            # In use, it belongs to a process of ours with other settings, and stays.
            aside.exchange_delete(dead_letter_exchange(self.name), if_unused=True)
        except ChannelError:
            logger.debug("%s stays", dead_letter_exchange(self.name))
        if found is None:
            logger.error(
                "queue %r could not be made a quorum queue with a dead letter queue (%s); "
                "it is declared as configured instead",
                self.name,
                refusal,
            )
        return found

    def __reduce__(self) -> Any:
        return _rebuild, (self._composed_of, self.as_dict())  # type: ignore[no-untyped-call]


def look_first(queue: Queue, *, delivery_limit: int) -> LookFirst:
    """A queue like *queue*, still of its class, that looks before it declares."""
    if isinstance(queue, LookFirst):
        return queue
    cls: Any = type(queue)
    made: LookFirst = _looking(cls)(**queue.as_dict(), delivery_limit=delivery_limit)
    made.on_declared = queue.on_declared
    return made


@cache
def _looking(cls: Any) -> Any:
    """The class of queues that look first and are otherwise of class *cls*."""
    if cls is Queue:
        return LookFirst
    attrs = (*cls.attrs, ("delivery_limit", int))
    made = {"attrs": attrs, "_composed_of": cls, "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (LookFirst, cls), made)


def _rebuild(cls: Any, attributes: dict[str, Any]) -> Any:
    return _looking(cls)(**attributes)


def may_be_quorum(queue: Any) -> bool:
    """Is it of a kind that can be a quorum queue?"""
    return is_ours(durable=queue.durable, exclusive=queue.exclusive, auto_delete=queue.auto_delete, name=queue.name)


def prepared_arguments(queue: Any, channel: Any) -> dict[str, Any]:
    """The arguments its user wants it declared with, ``max_priority`` and the like included."""
    prepared = channel.prepare_queue_arguments(
        queue.queue_arguments or {},
        expires=queue.expires,
        message_ttl=queue.message_ttl,
        max_length=queue.max_length,
        max_length_bytes=queue.max_length_bytes,
        max_priority=queue.max_priority,
    )
    return dict(prepared)


# --- the broker's side --------------------------------------------------------------------------


@contextmanager
def another_channel(channel: Any) -> Iterator[Any]:
    """A channel of the same connection, to be lost without harm."""
    aside = channel.connection.channel()
    try:
        yield aside
    finally:
        aside.close()


def look(channel: Any, name: str) -> Any:
    """Name, messages and consumers of a queue, or ``None`` if there is none."""
    with another_channel(channel) as aside:
        try:
            return aside.queue_declare(name, passive=True)
        except NotFound:
            return None


def made_by_us(channel: Any, names: Iterable[str]) -> set[str]:
    """Those of the existing queues *names* that we declared, and that are quorum queues therefore."""
    ours = set()
    with another_channel(channel) as aside:
        for name in names:
            try:
                aside.exchange_declare(dead_letter_exchange(name), "fanout", passive=True)
            except NotFound:
                continue
            ours.add(name)
    return ours


def declare_dead_letter_queue(channel: Any, queue: str) -> None:
    """Make the dead letter queue of *queue*, unless there is one."""
    name = dead_letter_queue(queue)
    if look(channel, name) is None:
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=dead_letter_queue_arguments())


def bind_dead_letter_queue(channel: Any, queue: str) -> None:
    """Make it, and let it have what the broker takes out of *queue*, a queue of ours."""
    declare_dead_letter_queue(channel, queue)
    channel.queue_bind(dead_letter_queue(queue), dead_letter_exchange(queue))
