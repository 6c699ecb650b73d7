"""``Source`` over django-celery-beat's tables: one thread that alone touches the database.

A beat never waits for it: however long a statement hangs, slots are fired as they were read last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from celery import Celery
from django.db import connections, router
from django_celery_beat.models import PeriodicTask

from celery_hardened.beat.cause import cause
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.source import Change
from celery_hardened.contrib.django.schedules.entries import Entries
from celery_hardened.contrib.django.schedules.reader import Reader
from celery_hardened.contrib.django.schedules.reading import Reading
from celery_hardened.contrib.django.schedules.writer import Writer

logger = logging.getLogger("celery_hardened.beat")

#: Seconds between two looks, of which most are one small statement.
LOOK = 0.5

#: Seconds. A beat that begins to lead waits so long for its schedules; after that they come as changes.
LOAD = 5.0

#: Seconds. What is noted is written at the end if the database takes it within that time.
CLOSE = 5.0

#: Seconds between two tries while the database is away.
_PATIENCE = 2.0

#: Seconds until entries of the configuration that could not be written are tried again.
_INSTALL_AGAIN = 60.0

#: Seconds. A statement that has not come back for so long is said.
_HANGS = 30.0


class DatabaseSource:
    """The enabled rows of ``PeriodicTask``, with the policies of ``SchedulePolicy``.

    The entries of ``beat_schedule`` are put among them whenever this beat begins to lead.

    Args:
        defaults: Policy of a row that says nothing itself.
    """

    def __init__(self, app: Celery, *, defaults: Policy) -> None:
        # For reading too: a replica that lags would hide a change behind its stamp.
        self._alias: str = router.db_for_write(PeriodicTask)
        self._reading = Reading(app, defaults)
        self._reader = Reader(self._alias, self._reading)
        self._writer = Writer(self._reader)
        self._entries = Entries(app, self._alias, defaults)
        self._woken: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pending: dict[str, Change] = {}
        self._loading: _Load | None = None
        self._asked = False
        self._leading = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None
        self._refused: list[Problem] = []
        self._install_at: float | None = None
        self._said: str | None = None
        self._said_hanging = False

    # --- called from the main loop: nothing here touches the database --------------------------------------------

    def open(self, woken: Callable[[], None]) -> None:
        """Start the thread. *woken* is called from it."""
        self._woken = woken
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="celery-hardened-schedules", daemon=True)
        self._thread.start()

    def load(self) -> Sequence[Schedule | Problem]:
        """Everything. Without ``open`` it is read here and now, and nothing is written.

        If the database does not answer within five seconds: nothing, and everything comes as changes.

        Raises:
            DatabaseError: Without ``open`` only.
        """
        if self._thread is None:
            try:
                return Reader(self._alias, self._reading).load()
            finally:
                connections[self._alias].close_if_unusable_or_obsolete()
        load = _Load()
        with self._lock:
            self._pending.clear()
            self._loading, self._asked = load, True
        self._wake.set()
        load.done.wait(LOAD)
        with self._lock:
            if self._loading is load:
                self._loading = None
            return load.found or ()

    def is_ready(self) -> bool:
        return self._reader.loaded

    def changes(self) -> Sequence[Change]:
        self._say_if_it_hangs()
        with self._lock:
            found, self._pending = list(self._pending.values()), {}
        return found

    def lead(self, leading: bool) -> None:
        """A beat that stands by reads nothing, and holds no connection."""
        with self._lock:
            self._leading = leading
            if not leading:
                self._asked = False
                self._pending.clear()
        self._wake.set()

    def fired(self, schedule: Schedule, *, at: float) -> None:
        self._writer.note(schedule, at)

    def close(self) -> None:
        """Write what is noted, and let go of the connection; five seconds at most."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        self._wake.set()
        thread.join(CLOSE)
        if len(self._writer):
            logger.warning(
                "the last run of %d schedules could not be written to the database; Redis has them", len(self._writer)
            )

    def _say_if_it_hangs(self) -> None:
        since = self._busy_since
        hangs = since is not None and time.monotonic() - since > _HANGS
        if hangs and not self._said_hanging:
            logger.error(
                "the database %r has not answered for %.0f s; schedules are fired as they were read last",
                self._alias,
                _HANGS,
            )
        self._said_hanging = hangs

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                answered = self._turn()
                self._wake.wait(LOOK if answered else _PATIENCE)
                self._wake.clear()
            self._tried(self._writer.write)
        finally:
            self._disconnect()

    def _turn(self) -> bool:
        """One look and one write; whether the database answered."""
        if not self._leading and not self._reader.loaded and not len(self._writer):
            return True
        answered = self._tried(self._read) if self._leading else True
        # Not before there was a look: it tells whether a one-off is still as it was when it was fired.
        if answered and len(self._writer):
            answered = self._tried(self._writer.write)
        if not self._leading and answered:
            self._reader.forget()
            self._disconnect()
        return answered

    def _read(self) -> None:
        with self._lock:
            load = self._loading
        if load is None and self._reader.loaded:
            if self._install_at is not None and time.monotonic() >= self._install_at:
                self._install()
                self._reader.compare_next()
            self._pend(self._reader.look())
            return
        if not self._asked:
            return  # it will be, at once: the tables are not to be read twice
        self._install()
        found: list[Schedule | Problem] = [*self._reader.load(), *self._refused]
        with self._lock:
            mine = load is not None and self._loading is load
            if mine and load is not None:
                self._loading, load.found = None, found
                load.done.set()
        if not mine:
            self._pend(found)

    def _install(self) -> None:
        """Put the entries of the configuration into the tables. If that fails, what is there is fired all the same."""
        try:
            self._refused = self._entries.install()
            self._install_at = None
        except Exception as problem:  # noqa: BLE001 - also a database that only lets us read
            self._install_at = time.monotonic() + _INSTALL_AGAIN
            logger.warning("the entries of beat_schedule could not be written to the database: %s", problem)

    def _pend(self, changes: Iterable[Change]) -> None:
        with self._lock:
            if not self._leading or self._loading is not None:
                # Read for a beat that does not lead any more, or that is about to be given everything.
                return
            for change in changes:
                self._pending[change.name] = change
            waiting = bool(self._pending)
        if waiting:
            self._woken()

    def _tried(self, step: Callable[[], None]) -> bool:
        self._busy_since = time.monotonic()
        try:
            step()
        except Exception as problem:  # noqa: BLE001 - a beat goes on firing, whatever its database does
            self._say(cause(problem))
            self._disconnect()
            return False
        finally:
            self._busy_since = None
        if self._said is not None:
            self._said = None
            logger.info("the database %r answers again", self._alias)
        return True

    def _say(self, problem: str) -> None:
        # Once for each outage: its text may differ from try to try.
        if self._said is None:
            self._said = problem
            logger.error(
                "the database %r cannot be read or written, so schedules are fired as they were read last: %s",
                self._alias,
                problem,
            )

    def _disconnect(self) -> None:
        try:
            connections[self._alias].close()
        except Exception:
            # It may be broken in any way; the next look makes another one.
            logger.debug("closing the connection failed", exc_info=True)


class _Load:
    """One call of ``load`` that waits for the thread."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.found: list[Schedule | Problem] | None = None
