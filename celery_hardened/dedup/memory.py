"""Windows in this process alone, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from celery_hardened.dedup.contract import Held


@dataclass(slots=True)
class _Record:
    owner: str
    until: float
    ends: float | None
    told: float | None = None


class InMemoryWindowStore:
    """The contract of ``RedisWindowStore`` for one process.

    Args:
        clock: Seconds, on any clock that only moves forwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._lock = threading.Lock()

    def enter(
        self, key: str, *, task_id: str, ttl: float, window: float | None = None, told: float | None = None
    ) -> str:
        with self._lock:
            record = self._look(key)
            if record is not None and record.owner != task_id:
                return record.owner
            now = self._clock()
            if told is None and record is not None:
                told = record.told
            self._records[key] = _Record(task_id, now + ttl, None if window is None else now + window, told)
            return task_id

    def leave(self, key: str, *, task_id: str) -> bool:
        with self._lock:
            if self._of(key, task_id) is None:
                return False
            del self._records[key]
            return True

    def hold(self, key: str, *, task_id: str, ttl: float | None, told: float | None = None) -> bool:
        with self._lock:
            record = self._of(key, task_id)
            if record is None:
                return False
            if told is not None:
                record.told = told
            if ttl is not None:
                _keep(record, self._clock() + ttl)
            elif record.ends is not None:
                record.until = record.ends
            return True

    def renew(self, key: str, *, task_id: str, lease: float) -> bool:
        with self._lock:
            record = self._of(key, task_id)
            if record is None:
                return False
            _keep(record, max(record.until, self._clock() + lease))
            return True

    def lease(self, key: str, *, task_id: str, lease: float, published: float) -> bool:
        with self._lock:
            record = self._of(key, task_id)
            if record is None or (record.told is not None and record.told >= published):
                return False
            _keep(record, self._clock() + lease)
            return True

    def free(self, key: str) -> str | None:
        with self._lock:
            record = self._look(key)
            if record is None:
                return None
            del self._records[key]
            return record.owner

    def held(self, task: str | None = None) -> Iterator[Held]:
        with self._lock:
            now = self._clock()
            records = [(key, record) for key in list(self._records) if (record := self._look(key)) is not None]
        for key, record in records:
            if task is None or key.startswith(f"{task}:"):
                yield Held(key, record.owner, record.until - now)

    def _look(self, key: str) -> _Record | None:
        record = self._records.get(key)
        if record is not None and record.until <= self._clock():
            del self._records[key]
            return None
        return record

    def _of(self, key: str, task_id: str) -> _Record | None:
        record = self._look(key)
        return record if record is not None and record.owner == task_id else None


def _keep(record: _Record, until: float) -> None:
    record.until = until if record.ends is None else min(until, record.ends)
