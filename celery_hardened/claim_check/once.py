"""What was put away just now, of signatures that go into several messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from celery_hardened.claim_check.policy import Reference

#: The group whose members carry the signature, if any, the id of the task it will be, a digest of its
#: arguments, and whether it is shared.
Key: TypeAlias = "tuple[str | None, str, str, bool]"

_SECONDS = 60.0
_MOST = 256


class Once:
    """Remembers references for a minute. No lock: two threads that put the same away do no harm."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._noted: dict[Key, tuple[float, Reference]] = {}

    def find(self, key: Key) -> Reference | None:
        noted = self._noted.get(key)
        return noted[1] if noted is not None and self._clock() - noted[0] < _SECONDS else None

    def note(self, key: Key, reference: Reference) -> None:
        if len(self._noted) >= _MOST:
            self._noted = {}
        self._noted[key] = (self._clock(), reference)
