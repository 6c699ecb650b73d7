"""When a worker's main loop last turned: the fact that its liveness and one of its metrics are made of.

::

    prefork, threads     the loop's own timer stamps it each second, between two events
    gevent, solo, and
    where there is no
    event loop           the consumer stamps it each time before it waits for messages; a timer of its own
                         thread or greenlet would turn though the consumer stood still

A task of the solo pool runs in the loop, which turns again when it has ended. While a worker connects again, no loop
turns.
"""

from __future__ import annotations

import time

_last: float | None = None


def stamp() -> None:
    """The loop turns, now."""
    global _last
    _last = time.monotonic()


def loop_tick() -> float | None:
    """When the main loop of this process's worker last turned, by ``time.monotonic``; ``None``: it has not yet."""
    return _last
