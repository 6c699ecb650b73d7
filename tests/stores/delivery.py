"""One database as delivery uses it: queues, what is leased, what is set aside."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from redis import ConnectionPool, Redis

from celery_hardened.transport.names import Keys, tag
from celery_hardened.transport.scripts import DeliveryScripts, Layout

#: kombu's.
SEPARATOR = "\x06\x16"
STEPS = (0, 3, 6, 9)

LEASE = 30.0
VISIBILITY = 3600.0
FETCH = resources.files("celery_hardened.transport").joinpath("fetch.lua").read_text("utf-8")


def message(word: object, **properties: Any) -> bytes:
    """An item of a queue as kombu writes it, in which a test finds *word* again."""
    info = {"exchange": "", "routing_key": "q"}
    properties = {"delivery_info": info, "priority": 0, "body_encoding": "base64", **properties}
    properties.setdefault("delivery_tag", f"tag {word}")
    return json.dumps({"body": "e30=", "headers": {"word": word}, "properties": properties}).encode()


def words(items: Iterable[bytes]) -> list[Any]:
    """The words of messages."""
    return [json.loads(item)["headers"]["word"] for item in items]


class Taken:
    """The answer of one fetch."""

    def __init__(self, answer: list[Any], queues: Sequence[str]) -> None:
        self.bad, self.fence = answer[0], answer[1]
        self.queues = [queues[number - 1] for number in answer[2::2]]
        self.items: list[bytes] = answer[3::2]

    @property
    def words(self) -> list[Any]:
        return words(self.items)


class Box:
    """See the module.

    Args:
        prefix: ``global_keyprefix``.
    """

    def __init__(self, client: Redis, unique: str, *, prefix: str = "", steps: tuple[int, ...] = STEPS) -> None:
        self.client: Any = client
        self.unique = unique
        self.prefix = prefix
        self.steps = steps
        self.keys = Keys(f"{prefix}unacked", f"{prefix}unacked_index", f"{prefix}{unique}")
        self.scripts = DeliveryScripts(client, self.keys, Layout(prefix=prefix, separator=SEPARATOR, steps=steps))
        self._fetch: Any = client.register_script(FETCH)
        self._numbers: dict[str, int] = {}

    def as_user(self, name: str) -> Box:
        """The same, seen by another user of the server."""
        options = {**self.client.connection_pool.connection_kwargs, "username": name, "password": "any"}
        return Box(Redis(connection_pool=ConnectionPool(**options)), self.unique, prefix=self.prefix, steps=self.steps)

    # --- queues ----------------------------------------------------------------------------------

    def list_of(self, queue: str, step: int = 0) -> str:
        return f"{self.prefix}{queue}{SEPARATOR}{step}" if step else f"{self.prefix}{queue}"

    def put(self, queue: str, *items: bytes, step: int = 0) -> None:
        """Publish, as kombu does."""
        self.client.lpush(self.list_of(queue, step), *items)

    def waiting(self, queue: str = "q") -> list[bytes]:
        """Items of a queue in the order in which they are taken."""
        found: list[bytes] = []
        for step in self.steps:
            found += reversed(self.client.lrange(self.list_of(queue, step), 0, -1))
        return found

    # --- deliveries --------------------------------------------------------------------------------

    def fetch(
        self,
        *queues: str,
        limit: int = 10,
        consumer: str = "c",
        fair: bool = True,
        acks: Sequence[str] = (),
        own: str | None = None,
        no_ack: Sequence[str] = (),
        lease: float = LEASE,
    ) -> Taken:
        """Take messages of *queues* (by default ``q``), and out of the own list of the queue *own*."""
        queues = queues or ("q",)
        first = self._numbers.get(consumer, 0)
        self._numbers[consumer] = first + limit
        lists = [self.list_of(queue, step) for step in self.steps for queue in queues]
        names = [part for queue in queues for part in (json.dumps(queue), int(queue not in no_ack))]
        keys = self.keys
        answer = self._fetch(
            keys=[
                keys.unacked, keys.index, keys.fence, keys.malformed, keys.own_list(consumer, own or queues[0]), *lists
            ],
            args=[
                tag(consumer, 0)[:-12], first, limit, lease, int(fair), queues.index(own) + 1 if own else 0,
                len(queues), *names, *acks,
            ],
        )  # fmt: skip
        return Taken(answer, queues)

    def wait(self, queue: str = "q", *, consumer: str = "c", until: float | None = None) -> bytes | None:
        """What a waiting consumer's ``BLMOVE`` does, its list being known *until* some server time."""
        own = self.keys.own_list(consumer, queue)
        ends = self.now() + LEASE if until is None else until
        self.client.zadd(self.keys.fetching, {self.member(queue, consumer=consumer): ends})
        moved: bytes | None = self.client.lmove(self.list_of(queue), own, "RIGHT", "LEFT")
        return moved

    def member(self, queue: str = "q", *, consumer: str = "c") -> str:
        return json.dumps([self.keys.own_list(consumer, queue), queue])

    def sweep(self, *, pause: float = 1e12, grace: float = 0.0, every: float = 0.0, page: int = 1000) -> Any:
        """By default without grace, however long ago the last one was. Whether there is more is left out."""
        return self.scripts.sweep(
            visibility=VISIBILITY, every=every, pause=pause, grace=grace, page=page, keep=VISIBILITY
        )[:3]

    def expire(self, *tags: str) -> None:
        """Let their time be up: at the time of the oldest first, as they are named."""
        end = self.now() - 10
        for number, one in enumerate(tags):
            assert self.client.zscore(self.keys.index, one) is not None
            self.client.zadd(self.keys.index, {one: end + number / 1000}, xx=True)

    def now(self) -> float:
        """The server's time."""
        seconds, micros = self.client.time()
        return float(seconds + micros / 1e6)

    # --- what there is ---------------------------------------------------------------------------------

    @property
    def tags(self) -> list[str]:
        """Tags of all deliveries, sorted."""
        return sorted(one.decode() for one in self.client.hkeys(self.keys.unacked))

    def entries(self) -> dict[str, bytes]:
        return {key.decode(): value for key, value in self.client.hgetall(self.keys.unacked).items()}

    def scores(self) -> dict[str, float]:
        return {key.decode(): score for key, score in self.client.zrange(self.keys.index, 0, -1, withscores=True)}

    def aside(self) -> list[bytes]:
        """Raw items that were set aside."""
        return sorted(raw for _, _, raw in self.scripts.malformed())

    def state(self) -> dict[bytes, bytes | None]:
        """Everything in the database, to be compared. The note of the last sweep is left out."""
        keys = [key for key in self.client.scan_iter() if key != self.keys.sweep.encode()]
        return {key: self.client.dump(key) for key in keys}


def later(seconds: float) -> float:
    """Wall clock, for what kombu's own code scores."""
    return time.time() + seconds
