"""The steps of delivery in Redis, typed. Each is one script, and what it does is said in its file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Argument, Script
from celery_hardened.transport.names import Keys

#: Tags in one call: Lua's unpack and the server's patience have limits.
CHUNK = 500

#: Seconds that Redis counts as not answering after it did not.
DOWN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How kombu lays queues out in lists."""

    prefix: str
    """``global_keyprefix``."""

    separator: str
    steps: tuple[int, ...]

    def text(self) -> str:
        """As ``entries.lua`` reads it."""
        return json.dumps([self.prefix, self.separator, list(self.steps)])


class DeliveryScripts:
    """What a process does to its deliveries beside fetching them.

    Every step may be repeated: done twice it does nothing more. All raise
    ``StoreUnavailableError``.
    """

    def __init__(self, client: Redis, keys: Keys, layout: Layout) -> None:
        self.client = client
        self.keys = keys
        self._layout = layout.text()
        self._down_until = 0.0
        self._renew = self._step("renew", operation="renewing leases")
        self._end = self._step("end_deliveries", operation="acknowledging")
        self._delay = self._step("delay", operation="delaying messages")
        self._aside = self._step("set_aside", operation="setting a malformed message aside")
        self._back = self._step("entries", "give_back", operation="giving messages back")
        self._restore = self._step("restore", operation="restoring an abandoned delivery")
        self._release = self._step("entries", "release", operation="leaving a queue")
        self._sweep = self._step("entries", "sweep", operation="sweeping")

    def _step(self, *names: str, operation: str) -> Callable[..., Any]:
        """The script of these files. While Redis does not answer, one step waits for its time-out and the
        next ones fail at once: a worker that ends takes several."""
        script = Script(self.client, str(__package__), *names, operation=operation)

        def step(*, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
            if time.monotonic() < self._down_until:
                raise StoreUnavailableError(operation, "it did not answer a moment ago")
            try:
                return script(keys=keys, args=args)
            except StoreUnavailableError as problem:
                if isinstance(problem.__cause__, (RedisConnectionError, RedisTimeoutError)):
                    self._down_until = time.monotonic() + DOWN
                raise

        return step

    def renew(self, tags: Iterable[str], *, lists: Sequence[str], lease: float) -> list[str]:
        """Prolong *tags* and *lists* by *lease* seconds from now; the tags that are held no longer."""
        keys = [self.keys.index, self.keys.fetching]
        lost: list[str] = []
        for some in _chunks(tags, at_least_once=bool(lists)):
            answer = self._renew(keys=keys, args=[lease, len(lists), *lists, *some])
            lost += [_text(tag) for tag in answer]
            lists = ()
        return lost

    def end(self, tags: Iterable[str]) -> None:
        """Acknowledge."""
        for some in _chunks(tags):
            self._end(keys=[self.keys.unacked, self.keys.index], args=some)

    def give_back(self, tags: Sequence[str], *, started: bool, last: bool = False) -> int:
        """Put messages back into their queues, to be taken next and in this order, or behind all (*last*).

        Args:
            started: Their bodies may have run: they come marked as redelivered.
        """
        keys = [self.keys.unacked, self.keys.index, self.keys.malformed]
        count = 0
        # Put back last, taken first: so the last chunk goes first.
        some = list(_chunks(tags))
        for chunk in some if last else reversed(some):
            count += int(self._back(keys=keys, args=[self._layout, int(started), int(last), *chunk]))
        return count

    def entry(self, tag: str) -> bytes | None:
        """What ``unacked`` holds under *tag*."""
        with answered("reading a delivery"):
            return cast("bytes | None", self.client.hget(self.keys.unacked, tag))

    def restore(self, tag: str, entry: bytes, copies: Sequence[tuple[str, str]]) -> bool:
        """End the delivery, if it still holds *entry*, and put a message into each list of *copies*. Was it done?"""
        args: list[str | bytes] = [tag, entry, *(part for copy in copies for part in copy)]
        return bool(self._restore(keys=[self.keys.unacked, self.keys.index], args=args))

    def release(self, lists: Sequence[str], *, stay: float = 0.0) -> int:
        """Put back what lies in own lists, and leave them for good, or *stay* for some seconds. How many messages."""
        return int(self._release(keys=[self.keys.fetching], args=[self._layout, stay, *lists])) if lists else 0

    def delay(self, waits: Sequence[tuple[str, str, float]]) -> int:
        """Let deliveries wait: tag, tag to wait under, seconds from now. How many do."""
        args: list[str | float] = [part for wait in waits for part in wait]
        return int(self._delay(keys=[self.keys.unacked, self.keys.index], args=args)) if args else 0

    def set_aside(self, tag: str, queue: str, raw: bytes) -> None:
        """Keep what could not be read; see ``Keys.malformed``."""
        self._aside(keys=[self.keys.unacked, self.keys.index, self.keys.malformed], args=[tag, json.dumps(queue), raw])

    def malformed(self, limit: int = 100, *, but: Collection[str] = ()) -> list[tuple[str, str, bytes]]:
        """Items set aside and not yet buried, save those under tags in *but*: tag, queue, raw item."""
        with answered("reading malformed messages"):
            items = self.client.hscan_iter(self.keys.malformed, count=limit)
            found = list(islice((item for item in items if _text(item[0]) not in but), limit))
        return [_unpack(tag, value) for tag, value in found]

    def forget_malformed(self, tag: str) -> None:
        """It has its dead letter."""
        with answered("forgetting a malformed message"):
            self.client.hdel(self.keys.malformed, tag)

    def sweep(
        self, *, visibility: float, every: float, pause: float, grace: float, page: int, keep: float
    ) -> tuple[int, int, list[str], bool]:
        """One sweep: leases that ran out, messages that became due, tags of kombu's own that were abandoned, and
        whether there may be more."""
        of = self.keys
        expired, due, abandoned, more = self._sweep(
            keys=[of.unacked, of.index, of.fetching, of.malformed, of.sweep],
            args=[self._layout, visibility, every, pause, grace, page, keep],
        )
        return int(expired), int(due), [_text(tag) for tag in abandoned], bool(more)

    def length(self, lists: Sequence[str]) -> int:
        """Messages in queue *lists* together."""
        with answered("measuring a queue"), self.client.pipeline(transaction=False) as pipe:
            for one in lists:
                pipe.llen(one)
            return sum(found for found in pipe.execute() if isinstance(found, int))


def _chunks(tags: Iterable[str], *, at_least_once: bool = False) -> Iterator[list[str]]:
    rest = iter(tags)
    some = list(islice(rest, CHUNK))
    if not some and at_least_once:
        yield some
    while some:
        yield some
        some = list(islice(rest, CHUNK))


def _unpack(tag: Any, value: bytes) -> tuple[str, str, bytes]:
    queue, _, raw = value.partition(b"\n")
    return _text(tag), str(json.loads(queue)), raw


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
