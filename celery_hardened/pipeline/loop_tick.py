"""When did the loop that consumes last turn, and when was the broker last tried? Two stamps, for probes and metrics.

A loop of kombu's event hub (prefork, threads, solo) is stamped by a timer of its own, once a second. A pool of
greenlets has another loop (``synloop``), and there a timer would only prove that the hub of greenlets turns, so the
step that this loop takes each time round is stamped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from celery_hardened.metrics.loop_tick import stamp

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer as _Consumer
else:
    _Consumer = object  # a mix-in, see consumer.py

#: Seconds between two stamps of an event hub.
EVERY = 1.0


@dataclass(slots=True)
class LoopTick:
    """Stamps of one worker, ``time.monotonic()`` unless it says otherwise."""

    turned: float = field(default_factory=time.monotonic)
    """The loop turned; before its first turn: when the worker was made."""

    tried: float = float("-inf")
    """The broker was tried, or the wait between two tries went on."""

    def turn(self) -> None:
        self.turned = time.monotonic()
        stamp()  # what the metric shows

    def attempt(self) -> None:
        self.tried = time.monotonic()

    @property
    def connecting(self) -> bool:
        """Is the broker being tried, with no turn of the loop since?"""
        return self.tried > self.turned


_ticks: WeakKeyDictionary[Any, LoopTick] = WeakKeyDictionary()


def tick_of(worker: Any) -> LoopTick:
    """The stamps of *worker* (a ``WorkController``). Made when they are first asked for."""
    found = _ticks.get(worker)
    if found is None:
        found = _ticks.setdefault(worker, LoopTick())
    return found


class Ticking(_Consumer):  # type: ignore[misc]
    """Mix-in for ``celery.worker.consumer.Consumer``: its loop is stamped, and so are its tries to connect."""

    @property
    def tick(self) -> LoopTick:
        return tick_of(getattr(self, "controller", None) or self)  # a consumer may be made without a worker

    def register_with_event_loop(self, hub: Any) -> None:
        """Celery's, at each (re)connect. It cancels what is registered here when the connection is lost."""
        hub.call_soon(self.tick.turn)
        hub.call_repeatedly(EVERY, self.tick.turn)
        super().register_with_event_loop(hub)

    def perform_pending_operations(self) -> None:
        """Celery's, each time round of ``synloop``."""
        if not self.hub:
            self.tick.turn()
        super().perform_pending_operations()

    def ensure_connected(self, conn: Any) -> Any:
        self.tick.attempt()
        super().ensure_connected(_Stamped(conn, self.tick))
        return conn


class _Stamped:
    """A connection whose tries are noted."""

    def __init__(self, conn: Any, tick: LoopTick) -> None:
        self._conn = conn
        self._tick = tick

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def ensure_connection(self, errback: Callable[..., Any], *args: Any, **options: Any) -> Any:
        wait = options.pop("callback", None)

        def failed(*told: Any, **more: Any) -> Any:
            self._tick.attempt()
            return errback(*told, **more)

        def waits() -> Any:
            self._tick.attempt()
            return wait() if wait is not None else None

        return self._conn.ensure_connection(failed, *args, callback=waits, **options)
