"""Does this worker stop? One byte of memory that the worker shares with its pool processes.

A pool process gets no signal and no message when its worker is told to stop: the worker waits until it
has finished. A loop that could hand its task back looks here, after every row, for the price of
reading a byte.

The memory is made before the pool forks, so every child has it, those forked later included. A child
that was *spawned* has not; it is never told, and goes on to its end as under plain Celery.
"""

from __future__ import annotations

import mmap
from typing import Any

from celery import signals

_byte: mmap.mmap | None = None


def watch(worker: Any) -> None:
    """From now on, note in the byte when *worker* is told to stop. Before its pool starts.

    By SIGTERM or ``control shutdown``, by SIGQUIT, before the wait of a soft shutdown, or because
    something ended it.
    """
    global _byte
    byte = _byte = mmap.mmap(-1, 1)
    hostname = worker.hostname

    def told(sender: Any = None, **_: Any) -> None:
        if sender == hostname:
            byte[0] = 1

    def noting(step: Any) -> Any:
        def noted(*args: Any, **options: Any) -> Any:
            byte[0] = 1
            return step(*args, **options)

        return noted

    # Sent in the signal handler, where no more may be done than to take note. A soft shutdown sleeps
    # in the handler before that, and a worker may stop without a signal.
    signals.worker_shutting_down.connect(told, weak=False)
    worker.wait_for_soft_shutdown = noting(worker.wait_for_soft_shutdown)
    worker.signal_consumer_close = noting(worker.signal_consumer_close)


def told() -> bool:
    """Was the worker of this process, or the one that forked it, told to stop?"""
    return _byte is not None and _byte[0] == 1
