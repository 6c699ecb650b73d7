"""What the prefork pool does with its jobs when a connection is lost, and when a process is.

A lost connection ends no job that the pool has taken on. Celery forgets every job that no child has
confirmed yet, since their messages will be delivered again. With leases they will not: a job forgotten
in a pipe would run and never be acked, one in the buffer would never run, and both would stay leased
for as long as the worker lives.

A job that was started is not put back, see `heard_before_put_back`.
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


def heard_before_put_back(pool: Any) -> None:
    """From now on *pool* reads what a dead process had said before it gives the process's job to another.

    Celery sees to all that have died up to now, reads their pipes and then looks through the jobs. A process
    that dies between is dead in the second step, and what it said is not read: its job counts as never
    started, is put back and started again, and that death is nobody's. The time between is long when the
    first of them has a letter written. For a task that acks early it is a second run after its ack.

    Called again, or for another pool, it does nothing.
    """
    inner: Any = getattr(pool, "_pool", None)
    if not hasattr(inner, "_active_writers") or "on_job_process_down" in vars(inner):
        return
    put_back = inner.on_job_process_down

    def on_job_process_down(job: Any, pid_gone: Any) -> None:
        process = job._write_to
        # Those whose pipes have been read are no longer among the pool's.
        if process is not None and process in inner._pool and not process._is_alive():
            inner.process_flush_queues(process)
            if job._accepted:
                return  # lost with its process, or ended: the pool's next look finds it so
        put_back(job, pid_gone)

    inner.on_job_process_down = on_job_process_down


def forget_job(pool: Any, task_id: str) -> None:
    """Take a job that could not be written (its arguments cannot be pickled) out of the prefork pool's books."""
    inner: Any = getattr(pool, "_pool", None)
    if hasattr(inner, "_active_writers"):
        for job in list(inner._cache.values()):
            if getattr(job, "correlation_id", None) == task_id:
                job.discard()
