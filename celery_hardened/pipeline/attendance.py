"""A worker says every few seconds how it is, so that nobody has to ask it: who looks at workers looks in Redis.

One thread of the main process, with a connection of its own; no task waits for it. What it says is what the probes
say (``worker_health``). A Redis that does not answer is told once, and tried again at the next turn.

::

    ready        it speaks first: its pool is forked by now, and no child has a copy of the connection
    every 5 s    it speaks; within a second when it takes from other queues than before, or was told to end
    lease lost   it speaks at once, and tells of the lease
    the end      it takes its leave
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import Counter, deque
from typing import Any, Final
from uuid import uuid4

from celery import signals

from celery_hardened.attendance.record import MOST, WorkerRecord
from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.health.state import WorkerFacts
from celery_hardened.metrics.catalogue import TASKS
from celery_hardened.metrics.outcome import FINAL
from celery_hardened.metrics.worker import held_by_queue
from celery_hardened.pipeline.worker_health import WorkerHealth
from celery_hardened.signals import lease_lost

logger = logging.getLogger("celery_hardened")

#: Seconds between two records, and between two looks.
EVERY: Final = 5.0
LOOK: Final = 1.0

#: Seconds that Redis may take for one answer.
PATIENCE: Final = 2.0


def attend_roll(hardening: Hardening, worker: Any) -> Attendance | None:
    """Have *worker* say how it is, from when it is ready to its end.

    Returns:
        ``None`` where nothing is kept in Redis: there is none, it is a dry run, or all is kept in memory.
    """
    of = hardening.settings
    if of.observe or (of.dead_letter_store == "memory" and of.redis_url is None):
        return None
    try:
        attendance = Attendance(hardening, worker)
    except ConfigurationError:  # no Redis: dead letters are in a database, say
        return None

    def on_ready(sender: Any = None, **_: Any) -> None:
        if getattr(sender, "controller", None) is worker:
            attendance.start()

    def on_shutdown(sender: Any = None, **_: Any) -> None:
        if sender is worker:
            attendance.stop()
            signals.worker_ready.disconnect(on_ready)
            signals.worker_shutdown.disconnect(on_shutdown)

    signals.worker_ready.connect(on_ready, weak=False)
    signals.worker_shutdown.connect(on_shutdown, weak=False)
    return attendance


class Attendance:
    """See the module. Raises ``ConfigurationError`` if the app has no Redis."""

    def __init__(self, hardening: Hardening, worker: Any, *, every: float = EVERY) -> None:
        from celery_hardened.attendance.store import Keys, WorkerStore
        from celery_hardened.beat.leader_store import own_connection

        self._hardening = hardening
        self._worker = worker
        self._every = every
        self._client = own_connection(hardening.redis, timeout=PATIENCE)
        self._store = WorkerStore(self._client, Keys(hardening.prefix))
        self._health = WorkerHealth(worker, stall=hardening.settings.health_stall)
        self._token = uuid4().hex[:16]
        # Celery 5.6 takes a method of another object for the same receiver: the uid tells them apart.
        self._uid = f"{__name__}.{self._token}"
        self._lost: deque[str] = deque(maxlen=100)
        self._wake, self._stopping = threading.Event(), False
        self._began = time.monotonic()
        self._counts: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._away = False
        self._spoke: float | None = None
        self._essence: tuple[object, ...] = ()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="hardened-attendance", daemon=True)

    def start(self) -> None:
        """Speak from now on."""
        if self._thread.ident is not None:
            return
        self._pid = os.getpid()  # the worker may have become a daemon since
        self._began = time.monotonic()
        lease_lost.connect(self._on_lost, sender=self._hardening.app, weak=False, dispatch_uid=self._uid)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Take leave. Twice changes nothing; in a child neither."""
        if os.getpid() != self._pid or self._thread.ident is None or self._stopping:
            return
        self._stopping = True
        lease_lost.disconnect(sender=self._hardening.app, dispatch_uid=self._uid)
        atexit.unregister(self.stop)
        self._wake.set()
        self._thread.join(PATIENCE)

    def _on_lost(self, task: str | None = None, queue: str = "", **_: Any) -> None:
        from celery_hardened.attendance.store import lost_text

        self._lost.append(lost_text(queue=queue, worker=str(self._worker.hostname), task=task or ""))
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            woken = self._wake.wait(LOOK)
            self._wake.clear()
            try:
                self._turn(woken)
            except Exception:
                if not self._away:
                    self._away = True
                    logger.exception("this worker cannot say how it is")
        self._speak(None)
        self._client.close()
        self._client.connection_pool.disconnect()

    def _turn(self, woken: bool) -> None:
        # Each second, also if nothing is said: whether the process stood still is told from the time between two looks.
        facts, now = self._health.look(), time.monotonic()
        essence = facts.queues, facts.missing, facts.stopping, facts.tried is None
        if not woken and self._spoke is None and facts.tried is not None and now - self._began < self._every:
            return  # it was ready a moment ago, and its loop has still to turn
        due = self._spoke is None or now - self._spoke >= self._every
        if due or woken or essence != self._essence:
            self._spoke, self._essence = now, essence
            self._speak(facts)

    def _speak(self, facts: WorkerFacts | None) -> None:
        """*facts* are the worker's; ``None``: it ends."""
        lost = list(self._lost)
        try:
            self._store.tell(self._token, None if facts is None else self._record(facts), lost)
        except StoreUnavailableError as problem:
            if not self._away:
                self._away = True
                logger.warning("nobody sees how this worker is: %s", problem)
            return
        self._away = False
        for _ in lost:
            self._lost.popleft()

    def _record(self, facts: WorkerFacts) -> WorkerRecord:
        """How it is now."""
        now = time.monotonic()
        counts = self._hardening.metrics.place == "here"
        if counts:
            self._count(now)
        worker = self._worker
        held: Counter[str] = Counter(held_by_queue())
        return WorkerRecord(
            name=str(worker.hostname),
            pid=os.getpid(),
            pool=facts.pool,
            concurrency=int(getattr(worker.pool, "num_processes", None) or worker.concurrency or 1),
            began=now - self._began,
            queues=facts.queues[:MOST],
            missing=facts.missing[:MOST],
            cancelled=facts.cancelled[:MOST],
            deaf=facts.deaf,
            turned=0.0 if facts.working else facts.turned,
            tried=facts.tried,
            stopping=facts.stopping,
            counts=counts,
            held=dict(held.most_common(MOST)),
            ended={queue: now - at for queue, at in sorted(self._ended.items())[:MOST]},
        )

    def _count(self, now: float) -> None:
        """Since when has no work ended? By queue, whatever became of it."""
        sums: Counter[str] = Counter()
        for (_, queue, outcome), count in self._hardening.metrics.registry.values(TASKS).items():
            if outcome in FINAL:
                sums[queue] += int(count)
        for queue, count in sums.items():
            if count > self._counts.get(queue, 0):
                self._ended[queue] = now
        self._counts = dict(sums)
