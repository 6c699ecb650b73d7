"""Payloads in Redis: one string each, which runs out by itself."""

from __future__ import annotations

from redis import Redis

from celery_hardened.claim_check.contract import ENDED, checked
from celery_hardened.redis_connection import answered


class RedisPayloadStore:
    """Payloads in Redis, at ``{prefix}:payload:{name}``.

    They take its memory until their task ends; a file or object store is the better place for many.
    """

    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    def put(self, name: str, data: bytes, *, max_age: float) -> None:
        if not data:
            raise ValueError("an empty payload would say that its task has ended")
        key = self._key(name)
        with answered("storing a payload"):
            self._redis.set(key, data, px=_ms(max_age))

    def get(self, name: str, *, most: int) -> bytes | None:
        key = self._key(name)
        with answered("reading a payload"), self._redis.pipeline(transaction=False) as pipe:
            # In this order: one that runs out in between is missing, never ended.
            pipe.getrange(key, 0, most)
            pipe.exists(key)
            data, there = pipe.execute()
        return bytes(data) if there else None

    def finish(self, name: str, *, max_age: float) -> None:
        key = self._key(name)
        with answered("ending a payload"):
            self._redis.set(key, ENDED, px=_ms(max_age))

    def keep(self, name: str, *, max_age: float) -> None:
        key = self._key(name)
        with answered("keeping a payload"):
            self._redis.pexpire(key, _ms(max_age))

    def delete(self, name: str) -> None:
        key = self._key(name)
        with answered("removing a payload"):
            self._redis.unlink(key)

    def sweep(self, older_than: float) -> int:  # noqa: ARG002 - each key has its own end
        return 0

    def _key(self, name: str) -> str:
        return f"{self._prefix}:payload:{checked(name)}"


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
