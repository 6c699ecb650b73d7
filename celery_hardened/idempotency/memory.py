"""Claims in this process alone, for eager mode and tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from celery_hardened.idempotency.contract import Answer, Busy, Done, Mismatch, Won


@dataclass(slots=True)
class _Record:
    state: Literal["claimed", "done", "released"]
    owner: str
    task_id: str
    fingerprint: str
    fence: int
    since: int
    lifetime: float
    lease_end: float
    gone: float
    result: bytes | None = None


class InMemoryClaimStore:
    """The contract of ``RedisClaimStore`` for one process; threads may share it.

    Args:
        clock: Seconds since the epoch; fences are made of it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._lock = threading.Lock()

    def claim(self, key: str, *, owner: str, task_id: str, fingerprint: str, lease: float, lifetime: float) -> Answer:
        with self._lock:
            now = self._clock()
            self._forget(now)
            known = self._records.get(key)
            if known is not None:
                if known.state == "claimed" and known.owner == owner:
                    known.lease_end = now + lease
                    known.gone = now + known.lifetime
                    return Won(known.fence, known.since)
                works, same = known.state == "claimed" and known.lease_end > now, known.task_id == task_id
                compared = (works or known.state == "done") and not same and fingerprint and known.fingerprint
                if compared and known.fingerprint != fingerprint:
                    return Mismatch()
                if known.state == "done":
                    return Done(known.result)
                if works:
                    return Busy(known.lease_end - now, same)
            fence = max(known.fence + 1 if known is not None else 1, int(now * 1000))
            since = known.since if known is not None else fence
            lifetime = max(lifetime, lease)
            self._records[key] = _Record(
                state="claimed",
                owner=owner,
                task_id=task_id,
                fingerprint=fingerprint,
                fence=fence,
                since=since,
                lifetime=lifetime,
                lease_end=now + lease,
                gone=now + lifetime,
            )
            return Won(fence, since)

    def renew(self, key: str, *, owner: str, lease: float) -> bool:
        with self._lock:
            now = self._clock()
            known = self._of(key, owner, now)
            if known is not None and known.state == "claimed":
                known.lease_end = now + lease
                known.gone = now + known.lifetime
            return known is not None

    def renew_all(self, claims: Sequence[tuple[str, str]], *, lease: float) -> list[bool]:
        return [self.renew(key, owner=owner, lease=lease) for key, owner in claims]

    def finish(self, key: str, *, owner: str, result: bytes | None, lifetime: float) -> bool:
        with self._lock:
            now = self._clock()
            known = self._of(key, owner, now)
            if known is None or known.state == "released":
                return False
            if known.state == "claimed":
                known.state, known.result, known.lifetime = "done", result, lifetime
                known.gone = now + lifetime
            return True

    def release(self, key: str, *, owner: str) -> bool:
        with self._lock:
            now = self._clock()
            known = self._of(key, owner, now)
            if known is None or known.state == "done":
                return False
            if known.state == "claimed":
                known.state = "released"
                known.gone = now + known.lifetime
            return True

    def _of(self, key: str, owner: str, now: float) -> _Record | None:
        """The record, if *owner* wrote its state."""
        self._forget(now)
        known = self._records.get(key)
        return known if known is not None and known.owner == owner else None

    def _forget(self, now: float) -> None:
        for key in [key for key, record in self._records.items() if record.gone <= now]:
            del self._records[key]
