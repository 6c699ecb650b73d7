"""One reading for all pages of a process, which waits for nobody longer than a second.

Each of those who are asked has a thread while it is asked, so a page waits for all of them together, and one that
hangs costs the others nothing. An answer is good for some seconds: ten pages that refresh cost one reading, in each
process that serves them. While an answer is awaited nobody is asked a second time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from django.db import connections

from celery_hardened.cli.text import cut, without_passwords
from celery_hardened.contrib.django.overview.facts import Facts, Silence
from celery_hardened.contrib.django.overview.read import AskBroker, AskLetters, AskRedis, AskTables
from celery_hardened.hardening import Hardening

logger = logging.getLogger("celery_hardened")

#: Seconds that a page waits, for all of them together.
PATIENCE: Final = 1.0

#: Seconds that an answer is good for. Less than the pause of a page that refreshes.
FRESH: Final = 4.0

#: Seconds that an answer is shown while the next one is awaited, and nothing is said of it.
SLOW: Final = 15.0

#: Seconds that an answer is shown at all: after that nobody knows whether it is still true.
KEEP: Final = 30.0


class Ask(Protocol):
    """Somebody who is asked."""

    who: str

    def read(self) -> Any: ...


class Asked:
    """One of them, with what it answered last. Threads may share it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()
        self._answer: Any = None
        self._answered: float | None = None
        self._trouble: str | None = None
        self._tried: float | None = None

    @property
    def who(self) -> str:
        return self._ask.who

    def begin(self) -> None:
        """Ask, unless there is a fresh answer or one is awaited. Returns at once."""
        with self._lock:
            fresh = self._tried is not None and time.monotonic() - self._tried < FRESH
            # Not alive: it is over, or this process was forked from the one that has the thread.
            if fresh or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._run, name="hardened-overview", daemon=True)
            try:
                thread.start()
            except RuntimeError as problem:  # this process has all the threads that it may have
                self._trouble = f"it could not be asked ({problem})"
                return
            self._thread = thread

    def wait(self, until: float) -> None:
        """Until it is over, or the monotonic clock says *until*."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        try:
            answer = self._ask.read()
        except Exception as problem:  # noqa: BLE001 - whatever it raises, the page says so and shows the rest
            trouble = cut(without_passwords(f"{problem}" or type(problem).__name__), 300)
            if self._trouble is None:
                logger.warning("the overview could not ask %s: %s", self.who, trouble)
            self._over(None, trouble)
        else:
            self._over(answer, None)
        finally:
            connections.close_all()  # those of this thread, which ends

    def _over(self, answer: Any, trouble: str | None) -> None:
        now = time.monotonic()
        with self._lock:
            self._trouble, self._tried = trouble, now
            if trouble is None:
                self._answer, self._answered = answer, now

    @property
    def age(self) -> float:
        """Seconds since the answer that is shown; 0: none is."""
        ago = 0.0 if self._answered is None else time.monotonic() - self._answered
        return ago if ago <= KEEP else 0.0

    def told(self) -> tuple[Any, Silence | None]:
        """What it answered last, if that is not too old; and whether it is silent."""
        with self._lock:
            ago = time.monotonic() - (self._began if self._answered is None else self._answered)
            answer = self._answer if self._answered is not None and ago <= KEEP else None
            if self._trouble is not None:
                return answer, Silence(self._trouble, ago)
            if self._answered is None or ago > SLOW:
                return answer, Silence(f"no answer within {PATIENCE:g} s", ago)
            return answer, None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page shows."""

    facts: Facts
    at: float
    """When it was read, by this host's clock: the oldest of what is shown."""


class Watch:
    """See the module.

    Args:
        asks: The broker, Redis, the store of dead letters, the tables: in this order.
    """

    def __init__(self, asks: Sequence[Ask], *, patience: float = PATIENCE) -> None:
        self.asks = tuple(asks)
        self._asked = [Asked(ask) for ask in asks]
        self._patience = patience

    def look(self) -> Seen:
        """How it is now, or was some seconds ago. Raises nothing because of who is asked."""
        until = time.monotonic() + self._patience
        for one in self._asked:
            one.begin()
        for one in self._asked:
            one.wait(until)
        told = [one.told() for one in self._asked]
        (queues, _), (redis, _), (letters, _), (schedules, _) = told
        workers, beats = redis if redis is not None else (None, None)
        silent = {one.who: silence for one, (_, silence) in zip(self._asked, told, strict=True) if silence is not None}
        facts = Facts(
            queues=queues, workers=workers, beats=beats, letters=letters, schedules=schedules, silent=silent
        )  # fmt: skip
        return Seen(facts, time.time() - max(one.age for one in self._asked))


def watch_of(hardening: Hardening) -> Watch:
    """The one of this process for that app."""
    makers: Sequence[Callable[[Hardening], Ask]] = (AskBroker, AskRedis, AskLetters, AskTables)
    found: Any = vars(hardening).get("_overview")
    if found is None:
        # Two that come first at one moment: the one that is there stays.
        found = vars(hardening).setdefault("_overview", Watch([make(hardening) for make in makers]))
    made: Watch = found
    return made
