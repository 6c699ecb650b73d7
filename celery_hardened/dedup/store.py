"""Where windows are kept: one small hash for each key that is held."""

from __future__ import annotations

import re
from collections.abc import Iterator

from redis import Redis

from celery_hardened.dedup.contract import Held
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Script

#: Keys looked at in one step while listing.
_PAGE = 1000

_GLOB = re.compile(r"([\\*?\[\]^-])")


class RedisWindowStore:
    """Windows in Redis.

    Keys: ``{prefix}:dedup:{key}`` (hash, see ``window.lua``), which lives until the key is free.
    """

    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._enter = self._script("enter", "taking a deduplication key")
        self._leave = self._script("leave", "freeing a deduplication key")
        self._hold = self._script("hold", "holding a deduplication key")
        self._lease = self._script("lease", "leasing a deduplication key")

    def _script(self, name: str, operation: str) -> Script:
        return Script(self._client, str(__package__), "window", name, operation=operation)

    def enter(
        self, key: str, *, task_id: str, ttl: float, window: float | None = None, told: float | None = None
    ) -> str:
        ends = "" if window is None else _ms(window)
        return _text(self._enter(keys=[self._key(key)], args=[task_id, _ms(ttl), ends, _seconds(told)]))

    def leave(self, key: str, *, task_id: str) -> bool:
        return self._leave(keys=[self._key(key)], args=[task_id]) is not None

    def hold(self, key: str, *, task_id: str, ttl: float | None, told: float | None = None) -> bool:
        wanted = "" if ttl is None else _ms(ttl)
        return bool(self._hold(keys=[self._key(key)], args=[task_id, wanted, 0, _seconds(told)]))

    def renew(self, key: str, *, task_id: str, lease: float) -> bool:
        return bool(self._hold(keys=[self._key(key)], args=[task_id, _ms(lease), 1, ""]))

    def lease(self, key: str, *, task_id: str, lease: float, published: float) -> bool:
        return bool(self._lease(keys=[self._key(key)], args=[task_id, _ms(lease), _seconds(published)]))

    def free(self, key: str) -> str | None:
        owner = self._leave(keys=[self._key(key)], args=[""])
        return None if owner is None else _text(owner)

    def held(self, task: str | None = None) -> Iterator[Held]:
        before = f"{self._prefix}:dedup:{{"
        pattern = _GLOB.sub(r"\\\1", before if task is None else f"{before}{task}:") + "*}"
        cursor = 0
        seen: set[str] = set()  # SCAN may show a key twice
        while True:
            with answered("listing deduplication keys"):
                cursor, names = self._client.scan(cursor, match=pattern, count=_PAGE)
            for name in names:
                key = _text(name)[len(before) : -1]
                if key not in seen:
                    seen.add(key)
                    yield from self._look(key)
            if not cursor:
                return

    def _look(self, key: str) -> Iterator[Held]:
        with answered("listing deduplication keys"):
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hget(self._key(key), "owner")
            pipeline.pttl(self._key(key))
            owner, left = pipeline.execute()
        if owner is not None and left >= 0:  # else it was freed meanwhile
            yield Held(key, _text(owner), left / 1000)

    def _key(self, key: str) -> str:
        return f"{self._prefix}:dedup:{{{key}}}"


def _ms(seconds: float) -> int:
    """A TTL of zero would free the key."""
    return max(1, round(seconds * 1000))


def _seconds(moment: float | None) -> str:
    """Every digit: moments are compared."""
    return "" if moment is None else repr(float(moment))


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
