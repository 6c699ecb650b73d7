"""One thread for each process: keeps the keys of tasks that acked early, and frees what could not be freed.

A task that acks before it runs is gone with its process, and nobody can say so. While its body
runs its key lives on a lease, renewed here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakSet

from celery_hardened.dedup.contract import WindowStore
from celery_hardened.errors import StoreUnavailableError

logger = logging.getLogger("celery_hardened.dedup")

#: Seconds between two looks at what is to be freed.
PAUSE = 1.0

#: Keys that wait to be freed while the store does not answer; the oldest are left to their TTL.
MOST = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    until: float
    by: Callable[[], bool] | None


class Renewal:
    """Renews leases every third of one, and frees keys when their time has come.

    The thread lives while there is something to do. A forked child starts with nothing: what its
    parent keeps, its parent keeps.

    Args:
        lease: Seconds that a key outlives a process that died.
    """

    def __init__(
        self, store: Callable[[], WindowStore], *, lease: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self.forget()
        _of_this_process.add(self)

    def forget(self) -> None:
        """Start afresh, in a forked child."""
        self._lock = threading.Lock()
        self._freeing = threading.Lock()
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._to_free: dict[tuple[str, str], float] = {}
        self._thread: threading.Thread | None = None
        self._sooner = threading.Event()
        self._down = False

    def keep(self, key: str, task_id: str, *, most: float, by: Callable[[], bool] | None = None) -> None:
        """Renew the lease on *key* until ``drop``, for *most* seconds: nobody runs for ever.

        Args:
            by: Does it, in place of the store's ``renew``. ``False``: it need not be kept any more.
        """
        with self._lock:
            self._kept[key, task_id] = _Kept(self._clock() + most, by)
            self._run()

    def drop(self, key: str, task_id: str) -> bool:
        """Renew it no more; was it kept? A renewal may still be under way, and only ever lengthens."""
        with self._lock:
            return self._kept.pop((key, task_id), None) is not None

    def free_later(self, key: str, task_id: str, *, after: float = 0.0) -> None:
        """Free *key* in *after* seconds, or when the store answers again."""
        with self._lock:
            while len(self._to_free) >= MOST:
                del self._to_free[next(iter(self._to_free))]
            self._to_free[key, task_id] = self._clock() + after
            self._run()
            self._sooner.set()

    def keep_after_all(self, key: str, task_id: str) -> None:
        """The task is about to take *key* again: it is not to be freed later."""
        with self._lock:
            if (key, task_id) not in self._to_free:
                return
        with self._freeing:  # it may be on its way to the store, and must not arrive after the new publish
            self._forget_to_free(key, task_id)

    @property
    def away(self) -> bool:
        """Did the store not answer the last time? It is asked again while something is kept, or to be freed."""
        return self._down

    def missed(self, problem: StoreUnavailableError) -> None:
        """The store does not answer."""
        if not self._down:  # once an outage
            logger.warning("deduplication keys are renewed and freed when the store answers again: %s", problem)
            self._down = True
            self._sooner.set()

    def round(self) -> None:
        """Do once what is to be done now. The thread's work."""
        with self._lock:
            now = self._clock()
            for one in [one for one, kept in self._kept.items() if kept.until <= now]:
                del self._kept[one]
            all_kept = list(self._kept.items())
            due = [one for one, at in self._to_free.items() if at <= now]
        try:
            for one, kept in all_kept:
                self._renew(one, kept)
            for key, task_id in due:
                with self._freeing:
                    if (key, task_id) in self._to_free:
                        self._store().leave(key, task_id=task_id)
                        self._forget_to_free(key, task_id)
        except StoreUnavailableError as problem:
            self.missed(problem)
        else:
            if all_kept or due:  # it was asked
                self._down = False

    def _renew(self, one: tuple[str, str], kept: _Kept) -> None:
        key, task_id = one
        if kept.by() if kept.by is not None else self._store().renew(key, task_id=task_id, lease=self._lease):
            return
        with self._lock:
            if self._kept.get(one) is not kept:
                return  # dropped meanwhile, or its run has begun to keep it
            del self._kept[one]
        if kept.by is None:
            logger.warning("deduplication key %s is not held by %s any more", key, task_id)

    def _forget_to_free(self, key: str, task_id: str) -> None:
        with self._lock:
            self._to_free.pop((key, task_id), None)

    def _run(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        thread = threading.Thread(target=self._loop, name="celery-hardened-dedup", daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # at the end of the interpreter, or of the machine's threads
            logger.warning("deduplication keys of this process are neither renewed nor freed: %s", problem)
        else:
            self._thread = thread

    def _loop(self) -> None:
        pid = os.getpid()
        while os.getpid() == pid:
            with self._lock:
                if not self._kept and not self._to_free:
                    self._thread = None
                    self._down = False  # nobody would ask
                    return
                pause = min(self._lease / 3, PAUSE if self._to_free or self._down else self._lease)
            self._sooner.wait(pause)
            self._sooner.clear()
            try:
                self.round()
            except Exception:
                logger.exception("deduplication keys are renewed and freed later")


_of_this_process: WeakSet[Renewal] = WeakSet()


def _forked() -> None:
    # The thread is not here, and its lock may have been held by it.
    for renewal in list(_of_this_process):
        renewal.forget()


os.register_at_fork(after_in_child=_forked)
