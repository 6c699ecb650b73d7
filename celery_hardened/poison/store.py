"""Where deaths are remembered: one small hash for each piece of work that ever came back."""

from __future__ import annotations

from typing import Any

from redis import Redis

from celery_hardened.poison.contract import Start
from celery_hardened.poison.policy import Record
from celery_hardened.redis_script import Script


class RedisDeathStore:
    """Deaths in Redis.

    Keys: ``{prefix}:death:{work}`` (hash, see ``deaths.lua``) and
    ``{prefix}:death:{work}:returned:{task id}``, both living ``hardened_death_memory``.
    """

    def __init__(self, client: Redis, *, prefix: str, memory: float) -> None:
        self._prefix = prefix
        self._ttl = round(memory * 1000)
        self._peek = self._script(client, "peek", "reading deaths")
        self._open = self._script(client, "open_start", "recording a start")
        self._close = self._script(client, "close_start", "recording the end of a start")
        self._progress = self._script(client, "progress", "recording progress")
        self._death = self._script(client, "record_death", "recording a death")
        self._return = self._script(client, "record_return", "recording a return")

    @staticmethod
    def _script(client: Redis, name: str, operation: str) -> Script:
        return Script(client, str(__package__), "deaths", name, operation=operation)

    def peek(self, work: str) -> Record:
        return _record(self._peek(keys=[self._key(work)]))

    def open_start(self, start: Start, *, redelivered: bool, alone: bool) -> Record:
        args: list[str | int] = [start.token, int(redelivered), int(alone), start.carried, self._ttl]
        return _record(self._open(keys=[self._key(start.work), self._returned(start)], args=args))

    def close_start(self, start: Start, *, finished: bool) -> None:
        self._close(keys=[self._key(start.work)], args=[start.token, int(finished)])

    def progress(self, start: Start) -> None:
        self._progress(keys=[self._key(start.work)], args=[start.token, self._ttl])

    def record_death(self, start: Start) -> Record:
        return _record(self._death(keys=[self._key(start.work)], args=[start.token, start.carried, self._ttl]))

    def record_return(self, start: Start) -> None:
        self._return(keys=[self._key(start.work), self._returned(start)], args=[start.token, self._ttl])

    def _key(self, work: str) -> str:
        return f"{self._prefix}:death:{{{work}}}"

    def _returned(self, start: Start) -> str:
        return f"{self._key(start.work)}:returned:{start.task_id}"


def _record(answer: Any) -> Record:
    certain, presumed, unclosed, alone = answer
    return Record(certain=int(certain), presumed=int(presumed), unclosed=int(unclosed), alone=bool(alone))
