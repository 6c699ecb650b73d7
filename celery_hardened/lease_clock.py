"""The clock by which a lease in Redis can be judged from here."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds, the same for all processes of a machine. Goes on while the machine sleeps, where there is such a clock: a
lease does so too, and ``time.monotonic`` does not (clock_gettime(2), ``CLOCK_BOOTTIME``)."""
