"""Put back by hand what workers that ended uncleanly have left behind, with no worker's help.

It goes by the keys alone, so it works whatever delivery the app is set to now: after a
roll-back to kombu's own transport nobody else would look into them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kombu.connection import Connection
from kombu.transport import redis as kombu_redis

from celery_hardened.errors import ConfigurationError
from celery_hardened.redis_connection import answered, client_of
from celery_hardened.redis_script import Script
from celery_hardened.transport.names import DELAYED, LEASED, Keys
from celery_hardened.transport.scripts import CHUNK, DeliveryScripts, Layout

#: Keys or members looked at in one step of a scan.
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnList:
    """A consumer's own list with messages in it."""

    member: str
    """What it is registered as, or would be."""

    key: str

    awaited: str
    """The list its messages came from, a queue's or that of a priority of it, without ``global_keyprefix``."""

    messages: int

    live: bool
    """Its consumer's registration has not run out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies in Redis at one moment."""

    own_lists: tuple[OwnList, ...]

    leased: tuple[str, ...]
    """Tags, in the order their messages were taken."""

    delayed: tuple[str, ...]
    """Tags, in the order they become due."""

    malformed: int

    consumers: int
    """Consumers that seem to live: their registration, or a lease of theirs, has not run out."""

    lasts: float
    """Seconds until the last of those registrations and leases runs out, should nobody prolong it."""


class Recovery:
    """See the module. All methods raise ``StoreUnavailableError``.

    Args:
        connection: To the broker, as consumers make it.

        prefix: ``hardened_key_prefix``.

    Raises:
        ConfigurationError: The broker is no Redis.
    """

    def __init__(self, connection: Connection, *, prefix: str) -> None:
        channel = getattr(connection.get_transport_cls(), "Channel", None)
        if not (isinstance(channel, type) and issubclass(channel, kombu_redis.Channel)):
            raise ConfigurationError(
                f"the broker (transport {str(connection.transport_cls)!r}) is no Redis. It keeps unacknowledged "
                f"messages itself and gives them back when a worker is gone: there is nothing to recover."
            )
        options = connection.transport_options or {}

        def option(name: str) -> Any:
            return options.get(name, getattr(channel, name))

        before = option("global_keyprefix")
        self.keys = Keys(before + option("unacked_key"), before + option("unacked_index_key"), f"{before}{prefix}")
        self._before = before
        self._client = client_of(connection)
        layout = Layout(prefix=before, separator=option("sep"), steps=tuple(sorted(option("priority_steps"))))
        self.scripts = DeliveryScripts(self._client, self.keys, layout)
        self._recover = Script(self._client, str(__package__), "recover", operation="emptying a consumer's own list")

    # --- looking -----------------------------------------------------------------------------------

    def look(self) -> Found:
        """Look at everything; change nothing."""
        with answered("looking for messages to recover"):
            # Entries first: those of a worker that starts meanwhile are not among them.
            leased, delayed = self._entries()
            now = self._now()
            registered = self._scores(self.keys.fetching)
            own_lists = tuple(self._own_lists(registered, now))
            malformed = int(self._client.hlen(self.keys.malformed))
        alive = {self._consumer(json.loads(member)[0]): until for member, until in registered.items() if until > now}
        for tag, until in leased.items():
            if until > now:
                consumer = tag.split(":")[1]
                alive[consumer] = max(until, alive.get(consumer, 0.0))
        return Found(
            own_lists=own_lists,
            leased=_by_score(leased),
            delayed=_by_score(delayed),
            malformed=malformed,
            consumers=len(alive),
            lasts=max(alive.values(), default=now) - now,
        )

    def _now(self) -> float:
        seconds, microseconds = self._client.time()
        return float(seconds) + float(microseconds) / 1e6

    def _scores(self, key: str) -> dict[str, float]:
        return {_text(member): float(score) for member, score in self._client.zscan_iter(key, count=_PAGE)}

    def _entries(self) -> tuple[dict[str, float], dict[str, float]]:
        leased: dict[str, float] = {}
        delayed: dict[str, float] = {}
        for name, score in self._client.zscan_iter(self.keys.index, count=_PAGE):
            tag = _text(name)
            if tag.startswith(LEASED):
                leased[tag] = float(score)
            elif tag.startswith(DELAYED):
                delayed[tag] = float(score)
        return leased, delayed

    def _own_lists(self, registered: dict[str, float], now: float) -> Iterator[OwnList]:
        """Those that are registered, and those that nobody registers any more."""
        members = dict(registered)
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", f"{self.keys.fetching}:") + "*"
        for found in self._client.scan_iter(match=pattern, count=_PAGE, _type="list"):
            key = _text(found)
            awaited = key[len(self.keys.fetching) + 1 :].partition(":")[2]
            members.setdefault(json.dumps([key, awaited]), 0.0)
        for member, until in sorted(members.items()):
            key, awaited = json.loads(member)
            messages = int(self._client.llen(key))
            if messages:
                yield OwnList(member=member, key=key, awaited=awaited, messages=messages, live=until > now)

    def _consumer(self, own_list: str) -> str:
        return own_list[len(self.keys.fetching) + 1 :].partition(":")[0]

    # --- putting back --------------------------------------------------------------------------------

    def empty(self, own: OwnList, *, live: bool) -> int:
        """Move its messages to where they came from, to be taken next; how many.

        Args:
            live: Also if its consumer lives.
        """
        keys = [self.keys.fetching, own.key, f"{self._before}{own.awaited}"]
        total = 0
        while (moved := int(self._recover(keys=keys, args=[own.member, int(live), CHUNK]))) > 0:
            total += moved
        return total

    def put_back(self, tags: Sequence[str], *, started: bool) -> Iterator[int]:
        """End deliveries, to be taken next and in this order; yields how many went back in each step.

        Args:
            started: Their bodies may have run: they come marked as redelivered.
        """
        # Put back last, taken first: so the last go first.
        for first in reversed(range(0, len(tags), CHUNK)):
            yield self.scripts.give_back(tags[first : first + CHUNK], started=started)


def _by_score(tags: dict[str, float]) -> tuple[str, ...]:
    # What a worker renews together has one score, and its tags sort in the order they were taken.
    return tuple(sorted(tags, key=lambda tag: (tags[tag], tag)))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
