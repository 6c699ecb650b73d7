"""The signals of a beat, sent in a thread of their own: a receiver that hangs holds up no schedule, and no lead."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import Any, Final

from celery import Celery
from celery.utils.dispatch import Signal

from celery_hardened.signals import tell

logger = logging.getLogger("celery_hardened.beat")

#: Signals that wait for the receivers of those before.
MOST: Final = 10_000

#: Seconds for which the end of a beat waits for them.
PATIENCE: Final = 2.0


class BeatSignals:
    """Sends them in the order in which they were told. The thread starts with the first that anybody listens to."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._waiting: SimpleQueue[tuple[Signal, dict[str, Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._dropped = 0

    def tell(self, signal: Signal, **what: Any) -> None:
        """Have *signal* sent, if anybody listens. Does not wait; raises nothing."""
        if not signal.receivers:
            return
        if self._waiting.qsize() >= MOST:
            self._dropped += 1
            if self._dropped == 1:
                logger.error("a receiver of the beat's signals does not come to an end: further ones are dropped")
            return
        self._waiting.put((signal, what))
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:  # the main loop and the thread of the lead both tell
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="celery-hardened-beat-signals", daemon=True)
                try:
                    thread.start()
                except RuntimeError as problem:  # at the end of the interpreter, or of the machine's threads
                    logger.error("the beat's signals are not sent: %s", problem)
                    return
                self._thread = thread

    def _run(self) -> None:
        while (told := self._waiting.get()) is not None:
            signal, what = told
            try:
                tell(signal, self._app, **what)
            except BaseException:  # SystemExit in a thread ends nothing but the thread
                logger.exception("a receiver of %s ended, and the beat goes on", signal.name)
            if self._dropped and self._waiting.empty():
                logger.warning("%d signals of the beat were dropped", self._dropped)
                self._dropped = 0

    def close(self) -> None:
        """Wait a moment for those that were told. Twice changes nothing."""
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            self._waiting.put(None)
            thread.join(PATIENCE)
