"""kombu's Redis channel, on fetchers and leases."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu.transport import redis as kombu_redis
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from kombu.utils.scheduling import round_robin_cycle
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_hardened.redis_connection import answered
from celery_hardened.transport.delay import seconds_until
from celery_hardened.transport.fetcher import Fetcher, as_lost_connection
from celery_hardened.transport.leases import Lease
from celery_hardened.transport.names import DELAYED, LEASED, MARK, Keys, tag

if TYPE_CHECKING:
    from celery_hardened.transport.delivery import Delivery, FetchScript
    from celery_hardened.transport.leases import Leases

    _Channel = kombu_redis.Channel
else:
    _Channel = object  # a mix-in: what it is composed with is kombu's, or a user's own

logger = logging.getLogger("celery_hardened.transport")

#: Messages of one fetch where the consumer has no prefetch limit.
UNLIMITED = 100

#: Lists that are waited on at the same time, a connection each: first those of the queues' default
#: priority, then the others. Further lists are looked at about ten times a second.
WAITING = 8

#: Connections of a channel that are needed for other things.
RESERVED = 2


class HardenedChannel(_Channel):
    """Mix-in for ``kombu.transport.redis.Channel`` and ``SentinelChannel``.

    Publishing, fanout, bindings and connections are kombu's.
    """

    delivery: Delivery
    """Of the app; the composed class has it."""

    QoS: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        self.consumer = uuid4().hex[:16]
        self.tag_prefix = f"{LEASED}{self.consumer}:"
        self._number = 0
        self._no_ack: set[str] = set()
        self._backlog: deque[tuple[dict[str, Any], str]] = deque()
        self._fetchers: list[Fetcher] = []
        self._unstaffed = True
        """Queues were added or cancelled."""
        self._leases_messages = False
        self._layouts: dict[tuple[str, ...], tuple[list[str], list[str | int]]] = {}
        self._answered = time.monotonic()
        super().__init__(*args, **options)

    @cached_property
    def leases(self) -> Leases:
        return self.delivery.broker_of(self).leases

    @cached_property
    def keys(self) -> Keys:
        return self.delivery.keys_of(self)

    @cached_property
    def fetch_script(self) -> FetchScript:
        return self.delivery.fetch_script

    # --- what fetchers ask -----------------------------------------------------------------------

    def queues_in_turn(self) -> list[str]:
        cycle = self._queue_cycle
        return list(cycle.consume(len(cycle.items)))

    def credit(self) -> int:
        """Messages that may be taken now."""
        coming = len(self._backlog) + sum(fetcher.asked for fetcher in self._fetchers)
        if "can_consume" in self.qos.__dict__:  # worker_disable_prefetch has replaced it, and counts by itself
            return int(not coming and bool(self.qos.can_consume()))
        free = self.qos.can_consume_max_estimate()
        return min(UNLIMITED if free is None else free, UNLIMITED) - coming

    def reserve_numbers(self, count: int) -> int:
        first = self._number
        self._number += count
        return first

    def lists(self, queues: tuple[str, ...]) -> tuple[list[str], list[str | int]]:
        """Lists of *queues*, a row for each priority, and what the fetch script is told of each queue."""
        known = self._layouts.get(queues)
        if known is None:
            lists = [self.global_keyprefix + self._q_for_pri(q, step) for step in self.priority_steps for q in queues]
            names: list[str | int] = []
            for queue in queues:
                names += [json.dumps(queue), int(queue not in self._no_ack)]
            known = self._layouts[queues] = lists, names
        return known

    def list_name(self, queue: str, step: int) -> str:
        """Name of a queue's list, without ``global_keyprefix``."""
        return str(self._q_for_pri(queue, step))

    def whole(self, name: str) -> str:
        return f"{self.global_keyprefix}{name}"

    def own_list(self, awaited: str) -> str:
        return self.keys.own_list(self.consumer, awaited)

    def own_member(self, awaited: str) -> str:
        return json.dumps([self.own_list(awaited), awaited])

    @property
    def fair(self) -> bool:
        return type(self._queue_cycle) is round_robin_cycle

    @property
    def leases_messages(self) -> bool:
        """Is there a queue whose messages are acked?"""
        if self._unstaffed:
            self._leases_messages = any(queue not in self._no_ack for queue in self.active_queues)
        return self._leases_messages

    @property
    def polls(self) -> bool:
        """Are there lists that nobody waits on?"""
        return len(self._fetchers) < len(self.active_queues) * len(self.priority_steps)

    @property
    def idle(self) -> float:
        """Seconds since Redis answered a fetch or a wait, or since it had no reason to."""
        return time.monotonic() - self._answered

    def answered(self) -> None:
        self._answered = time.monotonic()

    def sockets(self) -> list[Any]:
        """Those that it fetches and waits on."""
        connections = [fetcher.client.connection for fetcher in list(self._fetchers)]
        return [one._sock for one in connections if one is not None and one._sock is not None]

    # --- the pump ----------------------------------------------------------------------------------

    def takes_acks(self) -> bool:
        """Is a fetch due at once that can take an ack along?

        Only in the thread of the loop, which comes to ``pump`` next.
        """
        return (
            bool(self._fetchers)
            and not self.closed
            and not self._backlog
            and self.delivery.in_loop()
            and bool(self._active_queues)
        )

    def pump(self, poller: Any) -> None:
        """Keep fetchers going. Called at every turn of the loop, before it waits."""
        self.delivery.loop_turned()
        if self._backlog:
            self.hand_out()
        if self._unstaffed:
            self._hire()
        fetchers = self._fetchers
        now = time.monotonic()
        hungry = self.credit() > 0 and not self.delivery.on.stopping()
        if not hungry:
            self._answered = now
        for fetcher in fetchers:
            if fetcher.state != "idle":
                if now >= fetcher.due:
                    fetcher.overdue()
            elif not fetcher.main and fetchers[0].state != "waiting":
                continue  # while the main one finds messages, a wait would only take them out of their turn
            elif hungry and now >= fetcher.rests_until and poller.connected(self, fetcher):
                fetcher.start()
        # With no fetch under way, none is due that could take acks along.
        if self.leases.unsent_acks and fetchers[0].state != "fetching" and not self.leases.flush():
            raise RedisConnectionError("Redis does not take acknowledgements")

    def _hire(self) -> None:
        """A fetcher for each list that is waited on, the main one first."""
        self._unstaffed = False
        wanted = [(queue, step) for step in sorted(self.priority_steps) for queue in self.active_queues]
        wanted = wanted[: max(1, min(WAITING, self.max_connections - RESERVED))]
        for fetcher in [one for one in self._fetchers if (one.queue, one.step) not in wanted]:
            self._fetchers.remove(fetcher)
            taken = self._register_taken(fetcher.stop(), first=fetcher.first, fence=0)
            self.leases.give_back([lease.tag for lease, _, _ in taken if lease is not None])
            self.leases.leave([self.own_member(fetcher.awaits)])
        staffed = {(fetcher.queue, fetcher.step) for fetcher in self._fetchers}
        for queue, step in wanted:
            if (queue, step) not in staffed:
                # Never self.client: a pop of kombu's for replies may be under way there.
                client = self._create_client(asynchronous=True)
                self._fetchers.append(Fetcher(self, client, queue, step, main=not self._fetchers))
        self._fetchers[0].main = True
        self.delivery.broker_of(self).channels.add(self)
        self.answered()

    # --- messages ----------------------------------------------------------------------------------

    def received(self, items: Sequence[tuple[str, bytes]], *, first: int, fence: int) -> None:
        """Messages of one fetch, leased under the numbers from *first*; the last one's fence is *fence*."""
        arrived = self._register_taken(items, first=first, fence=fence)
        waits: list[tuple[str, str, float]] = []
        for lease, queue, raw in arrived:
            self._queue_cycle.rotate(queue)
            payload = self._read(lease, queue, raw)
            if payload is None:
                continue
            wait = seconds_until(payload, most=self.delivery.max_eta) if lease else 0.0
            if lease and wait:
                waits.append((lease.tag, lease.tag.replace(LEASED, DELAYED, 1), wait))
            else:
                self._backlog.append((payload, queue))
        if waits:
            with as_lost_connection():
                self.leases.delay(waits)
        self.hand_out()

    def _register_taken(
        self, items: Sequence[tuple[str, bytes]], *, first: int, fence: int
    ) -> list[tuple[Lease | None, str, bytes]]:
        """Note the leases of one fetch, all of them before the first message is handed out: in the solo
        pool that call lasts as long as its task."""
        leased = sum(1 for queue, _ in items if queue not in self._no_ack)
        taken: list[Lease] = []
        arrived: list[tuple[Lease | None, str, bytes]] = []
        for queue, raw in items:
            lease = None
            if queue not in self._no_ack:
                number = len(taken)
                lease = Lease(tag(self.consumer, first + number), queue, self.consumer, fence - leased + number + 1)
                taken.append(lease)
            arrived.append((lease, queue, raw))
        if taken:
            self.leases.take(taken)
        return arrived

    def _read(self, lease: Lease | None, queue: str, raw: bytes) -> dict[str, Any] | None:
        """The message, with this delivery's own tag; ``None``: it cannot be read and was set aside."""
        try:
            payload: dict[str, Any] = loads(bytes_to_str(raw))
            mark = payload.pop(MARK, None)
            properties, headers = payload["properties"], payload.get("headers")
            if not isinstance(headers, dict | None):
                raise TypeError("the headers are no object")
            info = properties.get("delivery_info")
            info = dict(info) if isinstance(info, dict) else {"exchange": "", "routing_key": queue}
            properties["delivery_info"] = info
            if lease is None:
                properties.setdefault("delivery_tag", "")
            else:
                properties["delivery_tag"] = lease.tag
                info["fence"] = lease.fence
            info["queue"] = queue
            if isinstance(mark, dict) and mark.get("redelivered"):
                info["redelivered"] = True
                if headers is not None:
                    headers["redelivered"] = True
            if payload.get("body"):
                payload["body"] = self.decode_body(payload["body"], properties.pop("body_encoding", None))
        except Exception as problem:  # noqa: BLE001 - a message may be broken in any way
            logger.warning("an item of queue %r is no message (%s)", queue, type(problem).__name__)
            if lease is not None:
                with as_lost_connection():
                    self.leases.set_aside(lease.tag, queue, raw)
            return None
        return payload

    def hand_out(self) -> None:
        """Give what has arrived to its consumers. What a consumer raises goes up; the rest is kept.

        In the solo pool each call lasts as long as a task, and the worker may be told to stop meanwhile.
        """
        backlog = self._backlog
        while backlog:
            if self.delivery.on.stopping():
                tags = [payload["properties"]["delivery_tag"] for payload, _ in backlog]
                backlog.clear()
                self.leases.give_back(tags)
                return
            payload, queue = backlog.popleft()
            self.connection._deliver(payload, queue)

    def restore_abandoned(self, delivery_tag: str) -> None:
        """Put back a delivery that kombu's own transport made, as kombu would: into every queue that its
        exchange and routing key reach. What kombu would drop, since it cannot read it, is set aside."""
        scripts = self.leases.scripts
        raw = scripts.entry(delivery_tag)
        if raw is None:
            return
        try:
            payload, exchange, routing_key = loads(bytes_to_str(raw))
            payload["properties"].setdefault("delivery_info", {})["redelivered"] = True
            if isinstance(payload.get("headers"), dict):
                payload["headers"]["redelivered"] = True
            priority = self._get_message_priority(payload, reverse=False)
            with answered("looking up bindings"):
                queues = self._lookup(exchange, routing_key)
            copies = [(self.whole(self.list_name(queue, priority)), dumps(payload)) for queue in queues]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            copies = []
        if not copies:
            scripts.set_aside(delivery_tag, "", raw)
            self.leases.malformed = True
        elif scripts.restore(delivery_tag, raw, copies):
            logger.warning("a message that a worker without leases abandoned was put back: %s", delivery_tag)

    # --- kombu's own methods -------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool = False, *args: Any, **options: Any) -> Any:
        self._layouts.clear()
        self._unstaffed = True
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        return super().basic_consume(queue, no_ack, *args, **options)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        self._unstaffed = True
        return super()._basic_cancel(consumer_tag)

    def close(self) -> None:
        if not self.closed and self._fetchers:
            for fetcher in self._fetchers:
                try:
                    self._register_taken(fetcher.stop(), first=fetcher.first, fence=0)
                except Exception:  # the rest of the channel has to be closed all the same
                    logger.exception("a fetcher did not stop in order")
            self.leases.leave([self.own_member(fetcher.awaits) for fetcher in self._fetchers])
            self._backlog.clear()
        super().close()
        if self._fetchers:
            self.leases.flush()
