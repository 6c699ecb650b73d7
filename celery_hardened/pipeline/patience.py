"""What steps of all pipelines share: a dry run does nothing, and a store that is away for a moment is waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening

logger = logging.getLogger("celery_hardened")

T = TypeVar("T")


def observed(hardening: Hardening, what: str, *args: object) -> bool:
    """In a dry run, log and count what would be done; ``True`` if it is one and nothing may be done."""
    if hardening.settings.observe:
        hardening.observed[what] += 1
        times = hardening.observed[what]
        # what is a format itself
        logger.warning(f"observing: would {what}", *args, extra={"observed": times})  # noqa: G004
        return True
    return False


def patiently(
    hardening: Hardening,
    step: Callable[[], T],
    *,
    on: type[Exception] = StoreUnavailableError,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Do a *step* on our store, trying again for ``hardened_dead_letter_write_timeout`` seconds.

    For the pool process, where waiting holds up this task alone.

    Args:
        on: What a try may raise to be followed by another.

    Raises:
        StoreUnavailableError: Or *on*: it is not done; the task's message must not be acked.
    """
    deadline = clock() + hardening.settings.dead_letter_write_timeout
    pause = 0.1
    while True:
        try:
            return step()
        except on:
            if clock() + pause > deadline:
                raise
            sleep(pause)
            pause = min(2.0, pause * 2)
