"""Copies what beats and workers tell of runs in Redis into the database: one thread, of the beat that leads.

::

    begins to lead   every history is looked at: what a beat that died had not copied is copied now
    a slot moved     its history is copied within a second
    each second      what workers have told; and a part of all histories, so that each is looked at every half
                     a minute: runs by hand, and slots that wait for the run before them, wake nobody
    database away    nothing is lost that Redis still has, and no schedule waits

Nothing is removed from Redis before it is in the database. Two beats that copy at once do no harm.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from math import ceil
from typing import Any

from django.db import connections, router
from django_celery_beat.models import PeriodicTask

from celery_hardened.beat.cause import cause
from celery_hardened.beat.leader_store import own_connection
from celery_hardened.beat.names import Keys
from celery_hardened.beat.run_store import RunStore
from celery_hardened.contrib.django.models import ScheduleRun
from celery_hardened.contrib.django.runs.copying import Copying
from celery_hardened.hardening import Hardening

logger = logging.getLogger("celery_hardened.beat")

#: Seconds between two passes, and until the next one after one that failed.
EVERY, _PATIENCE = 1.0, 3.0

#: Seconds in which every history is looked at once.
ROUND = 30.0

#: Schedules whose histories are read and copied together; reports likewise.
_PAGE, _REPORTS = 20, 200

#: Schedules that are asked for their newest line together.
_ASKED = 500

#: Seconds for an answer of Redis.
_ANSWER = 5.0

#: Seconds for which the end of a beat waits for a pass that is under way. What is left is for the next beat.
CLOSE = 2.0


class Collector:
    """The history of the schedules of one app. Nothing that the main loop calls waits for a store."""

    def __init__(self, hardening: Hardening, *, every: float = EVERY) -> None:
        self._hardening = hardening
        self._every = every
        self._alias: str = router.db_for_write(ScheduleRun)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._moved: set[str] = set()
        self._leading = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._said: str | None = None

    # --- called from the main loop ------------------------------------------------------------------------------

    def open(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="celery-hardened-run-history", daemon=True)
        self._thread.start()

    def lead(self, leading: bool) -> None:
        """A beat that stands by copies nothing, and holds no connection."""
        self._leading = leading
        self._wake.set()

    def moved(self, schedule: str) -> None:
        """There is something new in the history of *schedule*."""
        with self._lock:
            self._moved.add(schedule)  # a name: there are no more than schedules, however long a store is away

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self._wake.set()
            thread.join(CLOSE)

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        client = own_connection(self._hardening.redis, timeout=_ANSWER)
        try:
            while not self._stopping:
                if not self._leading:
                    self._wait(None)
                    continue
                history = History(self._hardening, client, self._alias, goes_on=self._goes_on)
                while self._goes_on():
                    answered = self._tried(history)
                    self._wait(self._every if answered else _PATIENCE)
                self._disconnect()
        finally:
            self._disconnect()
            client.close()
            client.connection_pool.disconnect()

    def _goes_on(self) -> bool:
        return self._leading and not self._stopping

    def _wait(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _tried(self, history: History) -> bool:
        with self._lock:
            moved, self._moved = self._moved, set()
        try:
            history.turn(moved)
            connections[self._alias].close_if_unusable_or_obsolete()
        except Exception as problem:  # noqa: BLE001 - of Redis or of the database, and no schedule waits for either
            with self._lock:
                self._moved |= moved
            self._disconnect()
            if self._said is None:  # once for each outage
                self._said = cause(problem)
                logger.error("run history is not copied into the database %r: %s", self._alias, self._said)
            return False
        if self._said is not None:
            self._said = None
            logger.info("run history is copied into the database %r again", self._alias)
        return True

    def _disconnect(self) -> None:
        for alias in {self._alias, router.db_for_read(PeriodicTask)}:
            try:
                connections[alias].close()  # this thread's own
            except Exception:
                logger.debug("closing the connection failed", exc_info=True)


class History:
    """What one leader has copied. One thread at a time."""

    def __init__(self, hardening: Hardening, client: Any, alias: str, *, goes_on: Callable[[], bool]) -> None:
        settings = hardening.settings
        self._store = RunStore(client, Keys(hardening.prefix))
        self._copying = Copying(alias)
        self._most = settings.beat_history
        self._max_age = timedelta(seconds=settings.run_history_max_age)
        self._max_count = settings.run_history_max_count
        self._floor: datetime | None = None
        self._goes_on = goes_on
        self._copied: dict[str, bytes] = {}
        """By schedule the newest line that is known to be in the table."""

        self._round: Iterator[list[str]] = iter(())
        self._round_began = float("-inf")
        self._first = True

    def turn(self, moved: Iterable[str] = ()) -> None:
        """Copy what is new: of the schedules that moved, of what workers told, and of the next part of all.

        Raises:
            StoreUnavailableError: Redis does not answer.
            DatabaseError: The database does not.
        """
        if self._first:
            # A history outlives its rows: what was pruned would come back, without how it ended.
            self._floor = self._copying.floor(self._max_count)
            for names in _pages(self._all(), _ASKED):
                if not self._goes_on():
                    return
                self._look(names)
            self._first = False
        self._copy_new(sorted(set(moved)))
        self._take_reports()
        self._look(self._next_part())

    def _all(self) -> list[str]:
        names = set(self._store.schedules())
        names.update(PeriodicTask._base_manager.order_by().values_list("name", flat=True))
        return sorted(names)

    def _next_part(self) -> list[str]:
        """Some of all schedules: in ``ROUND`` seconds it has been each one's turn."""
        part = next(self._round, None)
        if part is None and time.monotonic() - self._round_began >= ROUND:
            self._round_began = time.monotonic()
            names = self._all()
            for gone in self._copied.keys() - set(names):
                del self._copied[gone]
            self._round = iter(_pages(names, max(1, ceil(len(names) * EVERY / ROUND))))
            part = next(self._round, None)
        return part or []

    def _look(self, names: list[str]) -> None:
        """Copy the histories of *names* whose newest line is not known to be copied."""
        if not names:
            return
        newest = dict(zip(names, self._store.newest(names), strict=True))
        asked = {name: line for name, line in newest.items() if isinstance(line, bytes)}
        other = {name: line for name, line in asked.items() if self._copied.get(name) != line}
        # A history is copied whole or not at all, so what is older than a line that is there is there too.
        for name in self._copying.known(other) if other else ():
            self._copied[name] = other.pop(name)
        self._copy_new(sorted(other))

    def _copy_new(self, names: list[str]) -> None:
        for page in _pages(names, _PAGE):
            if not self._goes_on():
                return
            self._copy(page)

    def _take_reports(self) -> None:
        while self._goes_on():
            names, reports = self._store.reports(_REPORTS)
            if not names:
                return
            # Their lines first: a run of which a line is there is told of by that.
            self._copy(sorted({report.schedule for report in reports}), reports)
            self._store.done_with(names)
            if len(names) < _REPORTS:
                return

    def _copy(self, names: list[str], reports: Iterable[Any] = ()) -> None:
        histories = dict(zip(names, self._store.histories(names, self._most), strict=True)) if names else {}
        fresh = {name: self._newer(name, lines) for name, lines in histories.items()}
        since = datetime.now(timezone.utc) - self._max_age
        self._copying.copy(fresh, list(reports), since=max(since, self._floor or since))
        self._copied.update({name: lines[0] for name, lines in histories.items() if lines})

    def _newer(self, name: str, lines: list[bytes]) -> list[bytes]:
        """Those of *lines*, newest first, that came after the one that was copied last."""
        known = self._copied.get(name)
        return lines[: lines.index(known)] if known in lines else lines


def _pages(names: list[str], size: int) -> list[list[str]]:
    return [names[first : first + size] for first in range(0, len(names), size)]
