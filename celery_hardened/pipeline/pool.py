"""A lost connection ends no job that the prefork pool has taken on.

Celery forgets every job that no child has confirmed yet, since their messages will be delivered
again. With leases they will not: a job forgotten in a pipe would run and never be acked, one in
the buffer would never run, and both would stay leased for as long as the worker lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from billiard.pool import RUN


@contextmanager
def jobs_kept(pool: Any, semaphore: Any) -> Iterator[None]:
    """While Celery cleans up after a lost connection: the jobs of *pool* stay, and their slots stay taken.

    Other pools keep their jobs anyway.
    """
    if not hasattr(getattr(pool, "_pool", None), "_active_writers"):
        yield
        return
    flush = pool.flush
    pool.flush = lambda: _finish_writes(pool._pool)
    try:
        yield
    finally:
        pool.flush = flush
    if semaphore is not None:
        # Celery has set it to its initial value: all slots free.
        semaphore.value = max(0, semaphore.initial_value - len(pool._pool._cache))


def _finish_writes(inner: Any) -> None:
    """Write out what is half written: the loop that would go on with it is gone, and what follows in the
    same pipe would be read as part of it."""
    inner.maintain_pool()
    if inner._state != RUN:
        return
    owners = {writer(): job for job in inner._cache.values() if (writer := getattr(job, "_writer", None)) is not None}
    for writer in list(inner._active_writers):
        job = owners.get(writer)
        process = getattr(job, "_write_to", None)
        if process is not None and process._is_alive():
            inner._flush_writer(process, writer)  # takes it out of the active ones
            continue
        # An acknowledgement for a child, or a job whose child has died: the pool sees to its end.
        inner._active_writers.discard(writer)
        if job is None:
            for _ in writer:
                pass


def forget_job(pool: Any, task_id: str) -> None:
    """Take a job that could not be written (its arguments cannot be pickled) out of the prefork pool's books."""
    inner: Any = getattr(pool, "_pool", None)
    if hasattr(inner, "_active_writers"):
        for job in list(inner._cache.values()):
            if getattr(job, "correlation_id", None) == task_id:
                job.discard()
