"""Workers tell how scheduled tasks have ended, for the history of their schedules. In the worker's main process.

::

    a delivery ends      is its message a schedule's? else nothing more is done
    the end is noted     in memory, at most so many: the loop of the worker waits for nothing
    a thread of its own  puts what is noted into Redis, together, and waits for a Redis that does not answer

Nothing hangs on a report: one that is lost leaves a run of which it is not known how it ended.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from celery import signals

from celery_hardened.beat.names import Keys
from celery_hardened.beat.run_report import RunReport
from celery_hardened.dead_letter.letter import letter_id
from celery_hardened.hardening import Hardening
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.ending import raised

logger = logging.getLogger("celery_hardened.beat")

#: Reports that wait for Redis; further ones are dropped.
MOST: Final = 10_000

#: Reports of one round trip.
_PAGE: Final = 200

#: Seconds for an answer, and until Redis is asked again after there was none.
_PATIENCE: Final = 2.0

#: Seconds for which the end of a worker waits for what is noted still.
LAST: Final = 2.0

#: Ends for which a letter was written, if the error does not name it.
_LETTERS: Final = frozenset({"failure", "timeout", "poison", "reject", "unknown"})

_KEY: Final = "run_reports"


def is_on(hardening: Hardening) -> bool:
    """Is run history kept? By default where the Django app is installed that keeps it."""
    said = hardening.settings.run_history
    if said is None:
        said = _is_installed()
    memory = hardening.settings.dead_letter_store == "memory" and hardening.settings.redis_url is None
    return said and not hardening.settings.observe and not memory and has_moments()


def has_moments() -> bool:
    """Can the project's tables hold moments? Not without ``USE_TZ``: an hour of each autumn is there twice."""
    settings = getattr(sys.modules.get("django.conf"), "settings", None)
    return settings is None or not settings.configured or bool(settings.USE_TZ)


def _is_installed() -> bool:
    apps = getattr(sys.modules.get("django.apps"), "apps", None)  # to import Django would not make it a project
    return bool(apps is not None and apps.ready and apps.is_installed("celery_hardened.contrib.django"))


def ended(
    request: Any, outcome: str, *, runtime: float | None, error: BaseException | None, again: bool | None
) -> None:
    """The delivery of *request* (a ``CountedRequest``) has ended. Does not wait; raises nothing.

    Args:
        again: It was published again after its process was lost; ``None``: nobody tried.
    """
    headers = request._request_dict
    if not is_scheduled(headers):
        return
    try:
        hardening = Hardening.expect(request._app)
        reports = reports_of(hardening)
        if reports is None:
            return
        marks = Marks.read(headers)
        retries = headers.get("retries") or 0
        letter = getattr(error, "hardened_letter", None)
        if letter is None and (outcome in _LETTERS or (outcome == "worker_lost" and again is None)):
            letter = letter_id(str(request.id), marks.redrives, retries, "")
        reports.note(
            RunReport(
                schedule=str(marks.schedule),
                slot=marks.slot or 0.0,
                task_id=str(request.id),
                outcome=outcome,
                at=round(time.time(), 3),
                started=None if request.time_start is None else round(request.time_start, 3),
                runtime=None if runtime is None else round(runtime, 6),
                attempt=retries + 1,
                deaths=marks.deaths,
                missed=marks.missed,
                worker=str(request._hostname),
                error=(raised(error) or "") if error is not None else "",
                letter=letter or "",
            )
        )
    except Exception:
        logger.exception("the end of %s is missing in the history of its schedule", request.id)


def ended_unread(hardening: Hardening, headers: Any, outcome: str, *, worker: str) -> None:
    """A message that no task of this app takes has become a letter. Does not wait; raises nothing."""
    if not is_scheduled(headers):
        return
    try:
        reports = reports_of(hardening)
        marks, task_id = Marks.read(headers), headers.get("id")
        if reports is None or marks.schedule is None or not isinstance(task_id, str):
            return
        retries = headers.get("retries")
        attempt = retries if isinstance(retries, int) else 0
        reports.note(
            RunReport(
                schedule=marks.schedule,
                slot=marks.slot or 0.0,
                task_id=task_id,
                outcome=outcome,
                at=round(time.time(), 3),
                missed=marks.missed,
                worker=worker,
                letter=letter_id(task_id, marks.redrives, attempt, ""),
            )
        )
    except Exception:
        logger.exception("the end of a message is missing in the history of its schedule")


def is_scheduled(headers: Any) -> bool:
    """Has a schedule sent it? Asked of every delivery that ends."""
    raw = headers.get(HEADER) if isinstance(headers, dict) else None
    return isinstance(raw, dict) and "schedule" in raw


def reports_of(hardening: Hardening) -> RunReports | None:
    """Where this worker notes them; ``None``: no history is kept."""
    found = hardening.__dict__.get(_KEY, _UNKNOWN)
    if found is _UNKNOWN:
        found = RunReports(hardening) if is_on(hardening) else None
        found = hardening.__dict__.setdefault(_KEY, found)
    return found  # type: ignore[no-any-return]


_UNKNOWN: Any = object()


class RunReports:
    """Reports of one worker. Its thread and its connection begin with the first scheduled task that ends."""

    def __init__(self, hardening: Hardening) -> None:
        self._hardening = hardening
        self._noted: deque[RunReport] = deque()
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ends = self._over = False
        self._dropped = 0
        self._said_away = False

    def note(self, report: RunReport) -> None:
        """Have *report* written. Does not wait for Redis."""
        with self._more:
            if len(self._noted) >= MOST:
                self._dropped += 1
                if self._dropped == 1:
                    logger.error("the records' Redis takes no reports of scheduled runs: further ones are dropped")
                return
            self._noted.append(report)
            if self._thread is None or self._over:  # over: a worker has ended, and the process has another one
                self._start()
            self._more.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="celery-hardened-run-reports", daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # at the end of the interpreter, or of the machine's threads
            logger.error("scheduled runs are not reported: %s", problem)
            return
        self._thread, self._ends, self._over = thread, False, False
        # Celery 5.6 takes a method of another object for the same receiver: the uid tells them apart.
        signals.worker_shutdown.connect(self.close, dispatch_uid=f"{__name__}.{id(self)}")

    def _run(self) -> None:
        from celery_hardened.beat.leader_store import own_connection  # redis is slow to import
        from celery_hardened.beat.run_store import RunStore

        client = own_connection(self._hardening.redis, timeout=_PATIENCE)
        store = RunStore(client, Keys(self._hardening.prefix))
        try:
            while page := self._next():
                self._write(store, page)
        finally:
            client.close()
            client.connection_pool.disconnect()

    def _next(self) -> list[RunReport]:
        """What is to be written next; nothing: this is the end."""
        with self._more:
            while not self._noted and not self._ends:
                self._more.wait()
            self._over = not self._noted
            return [self._noted[index] for index in range(min(_PAGE, len(self._noted)))]

    def _write(self, store: Any, page: Sequence[RunReport]) -> None:
        try:
            store.report(page)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the worker goes on
            self._say_away(problem)
            with self._more:
                self._more.wait_for(lambda: self._ends, _PATIENCE)
                if self._ends:
                    self._noted.clear()
            return
        with self._more:
            for _ in page:
                self._noted.popleft()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d reports of scheduled runs were dropped", dropped)
        self._said_away = False

    def _say_away(self, problem: Exception) -> None:
        if not self._said_away:
            self._said_away = True
            logger.warning("how scheduled runs end is written down once Redis answers: %s", problem)

    def close(self, **_: Any) -> None:
        """Wait a moment for what is noted. Twice changes nothing."""
        with self._more:
            self._ends = True
            self._more.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(LAST)
