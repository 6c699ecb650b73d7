"""Kill switches: turn a policy off for all workers, without a deploy.

One small hash in Redis, read on failure paths only (never for a task that
succeeds) and trusted for ``hardened_switch_ttl`` seconds. When Redis does not
answer, the last known value stands; with none known, everything is on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_hardened.errors import ConfigurationError, StoreUnavailableError

logger = logging.getLogger("celery_hardened.switches")

#: What can be switched off. ``retries``: failures of hardened tasks become dead letters at
#: once. ``parking``: a dead letter fails its chord at once.
SWITCHES = ("retries", "parking")


@dataclass(frozen=True, slots=True)
class SwitchState:
    """How a switch was last thrown, by whom and why."""

    on: bool
    by: str
    why: str
    at: float


class Switches:
    """The kill switches of one app.

    Args:
        read: Returns the stored hash (bytes to bytes); raises ``StoreUnavailableError``.

        write: Stores a field, or removes it when the value is ``None``.
    """

    def __init__(
        self,
        *,
        read: Callable[[], dict[bytes, bytes]],
        write: Callable[[str, str | None], Any],
        ttl: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._write = write
        self._ttl = ttl
        self._clock = clock
        self._known: dict[str, SwitchState] = {}
        self._read_at: float | None = None
        self._lock = threading.Lock()

    def get(self, name: str) -> bool:
        """Is *name* on? Everything is, until switched off."""
        _check(name)
        with self._lock:
            now = self._clock()
            if self._read_at is None or now - self._read_at >= self._ttl:
                self._read_at = now
                try:
                    self._known = self._fetch()
                except StoreUnavailableError as problem:
                    logger.warning("kill switches could not be read, the last known ones stand: %s", problem)
            state = self._known.get(name)
        return state is None or state.on

    def set(self, name: str, on: bool, *, by: str, why: str) -> None:
        """Throw a switch. Workers follow within ``hardened_switch_ttl`` seconds."""
        _check(name)
        self._write(name, json.dumps({"on": on, "by": by, "why": why, "at": time.time()}))
        self._read_at = None

    def clear(self, name: str) -> None:
        """Back to on, and forget who switched it off."""
        _check(name)
        self._write(name, None)
        self._read_at = None

    def all(self) -> dict[str, SwitchState | None]:
        """Every switch as it is stored now; ``None`` was never thrown."""
        stored = self._fetch()
        return {name: stored.get(name) for name in SWITCHES}

    def _fetch(self) -> dict[str, SwitchState]:
        found = {}
        for raw_name, raw in self._read().items():
            try:
                found[raw_name.decode()] = _state(json.loads(raw))
            except (ValueError, TypeError, LookupError):
                logger.warning("the stored state of kill switch %r is unreadable and was ignored", raw_name)
        return found


def _state(stored: Any) -> SwitchState:
    if not isinstance(stored["on"], bool):
        raise ValueError(f"'on' is {stored['on']!r}")
    return SwitchState(on=stored["on"], by=str(stored["by"]), why=str(stored["why"]), at=float(stored["at"]))


def _check(name: str) -> None:
    if name not in SWITCHES:
        raise ConfigurationError(f"there is no switch {name!r}; there are {', '.join(SWITCHES)}.")
