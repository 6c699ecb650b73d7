"""Queues in Redis: one pipelined call for all of them, whatever lies in them.

What it costs the server is bounded: a count and the end of one message for each list, and a few thousand names
of deliveries at most. No message is brought here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from redis import Redis

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.metrics.queue_reading import BrokerReading, QueueReading, waited
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Script

logger = logging.getLogger("celery_hardened.metrics")

#: Bytes from which a message is not looked at each time: the server copies it whole to look at its end.
LARGE: Final = 4 * 1024 * 1024

#: Lists that one script looks at: the server does nothing else meanwhile.
CHUNK: Final = 100

#: Seconds that what was seen of such a message is taken for granted.
LARGE_FOR: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisLayout:
    """How kombu keeps queues in this Redis, as its channel is configured."""

    prefix: str
    """``global_keyprefix``."""

    separator: str
    steps: tuple[int, ...]
    """``priority_steps``."""

    index: str
    """Key of the sorted set of deliveries, prefix included."""

    lease: float
    """``hardened_lease``: seconds that a worker's lease of a message lasts."""

    delayed: str
    """First characters of the tag of a message that waits for its time."""

    def lists(self, queue: str) -> list[str]:
        """Keys of the lists of *queue*, one for each priority: all of them always, for a producer may use any."""
        return [
            f"{self.prefix}{queue}{self.separator}{step}" if step else f"{self.prefix}{queue}" for step in self.steps
        ]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the next message of a list says."""

    published: float | None
    eta: str
    until: float = 0.0


class RedisQueues:
    """A ``QueueSource``.

    Args:
        client: Of the broker's Redis. It is left open.
        clock: The time of this host, as producers use theirs.
    """

    def __init__(self, client: Redis, layout: RedisLayout, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._layout = layout
        self._clock = clock
        self._tails = Script(client, str(__package__), "queue_tails")
        self._held = Script(client, str(__package__), "queue_held")
        self._large: dict[str, _Seen] = {}
        self._refused: set[str] = set()

    def read(self, queues: Sequence[str]) -> BrokerReading:
        now = self._clock()
        self._large = {key: seen for key, seen in self._large.items() if seen.until > now}
        lists = {queue: self._layout.lists(queue) for queue in queues}
        keys = [key for each in lists.values() for key in each]
        with answered("counting queues"), self._client.pipeline(transaction=False) as pipe:
            # Many keys at once, as kombu's own commands have them: on a cluster a prefix keeps all in one slot.
            for first in range(0, len(keys), CHUNK):
                some = keys[first : first + CHUNK]
                self._tails.queue(pipe, keys=some, args=[int(key not in self._large) for key in some])
            self._held.queue(pipe, keys=[self._layout.index], args=[self._layout.lease, self._layout.delayed])
            *told, held = pipe.execute()
        lines = dict(zip(keys, b"\n".join(told).decode("utf-8", "replace").split("\n"), strict=False))
        found = {queue: self._queue(queue, {key: lines[key] for key in each}, now) for queue, each in lists.items()}
        if found and not any(found.values()):
            raise StoreUnavailableError("counting queues", "no queue could be read; the log says why")
        unacked, delayed, _ = held
        return BrokerReading(
            queues={queue: reading for queue, reading in found.items() if reading is not None},
            delayed=int(delayed),
            unacked=int(unacked),
        )

    def close(self) -> None:
        """Nothing to do: the client is not ours."""

    def _queue(self, queue: str, lines: dict[str, str], now: float) -> QueueReading | None:
        total = 0
        ages: list[float] = []
        for key, line in lines.items():
            length, size, published, eta = line.split("\t", 3)
            if length == "-1":  # a key of another kind, say: of that queue nothing is known
                self._say(queue, eta)
                return None
            if length != "0":
                total += int(length)
                age = self._age(key, int(size), published, eta, now)
                if age is not None:
                    ages.append(age)
        self._refused.discard(queue)
        return QueueReading(waiting=total, oldest=max(ages) if ages else None if total else 0.0)

    def _age(self, key: str, size: int, published: str, eta: str, now: float) -> float | None:
        seen = self._large.get(key)
        if seen is None:
            seen = _Seen(_number(published), eta, now + LARGE_FOR)
            if size >= LARGE:
                self._large[key] = seen
        return waited(published=seen.published, eta=seen.eta, now=now)

    def _say(self, queue: str, problem: str) -> None:
        if queue not in self._refused:
            self._refused.add(queue)
            logger.warning("queue %r cannot be counted: %s", queue, problem)


def _number(text: str) -> float | None:
    """A time of publish; ``None`` for what is none, or none of this era."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 < number < 1e12 else None
