"""Checkpoints in Redis: one small hash for each piece of work that is under way."""

from __future__ import annotations

from typing import cast

from redis import Redis

from celery_hardened.checkpoint.contract import NOBODY, Message, Whose
from celery_hardened.redis_script import Script


class RedisCheckpointStore:
    """A ``CheckpointStore`` in Redis >= 6.2 or Valkey. May be shared by threads and forked processes.

    Keys: ``{prefix}:checkpoint:{work}`` (hash, see ``open.lua``), living as long as the caller says.
    """

    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._prefix = prefix
        package = str(__package__)
        self._open = Script(client, package, "open", operation="opening a checkpoint")
        self._save = Script(client, package, "save", operation="saving a checkpoint")
        self._finish = Script(client, package, "finish", operation="closing a checkpoint")

    def open(self, work: str, *, owner: str, again: bool, lifetime: float, of: Message = NOBODY) -> bytes | None:
        args: list[str | int] = [owner, int(again), _ms(lifetime), *of]
        state: bytes | None = self._open(keys=[self._key(work)], args=args)
        return state

    def save(
        self, work: str, *, owner: str, state: bytes, lifetime: float, anew: bool = False, of: Message = NOBODY
    ) -> Whose:
        args: list[str | bytes | int] = [owner, state, _ms(lifetime), int(anew), *of]
        return _whose(self._save(keys=[self._key(work)], args=args))

    def finish(self, work: str, *, owner: str, lifetime: float) -> Whose:
        return _whose(self._finish(keys=[self._key(work)], args=[owner, _ms(lifetime)]))

    def _key(self, work: str) -> str:
        return f"{self._prefix}:checkpoint:{{{work}}}"


def _whose(answer: bytes) -> Whose:
    return cast("Whose", answer.decode())


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
