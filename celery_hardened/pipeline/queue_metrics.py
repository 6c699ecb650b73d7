"""Metrics of queues, dead letters and the leader among beats, in whatever process was asked to tell them.

A thread asks every few seconds and puts what it hears into the registry of the process. So a scrape waits for
nobody: while a store is away, ``queue_scrape_timestamp_seconds`` says since when, and after a while its numbers
are not shown any more, because nobody knows whether they are still true.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final

from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.metrics import catalogue
from celery_hardened.metrics.family import OTHER, Family
from celery_hardened.metrics.queue_reading import KEEP, QueueSource
from celery_hardened.metrics.registry import Labels
from celery_hardened.pipeline.queue_names import queue_names
from celery_hardened.pipeline.queue_source import source_of

logger = logging.getLogger("celery_hardened.metrics")

#: Seconds between two readings.
EVERY: Final = 5.0

#: Seconds after which a new task of this process, or a new route, is found.
_NAMES_FOR: Final = 60.0

_BROKER: Final = (
    catalogue.QUEUE_WAITING,
    catalogue.QUEUE_OLDEST,
    catalogue.QUEUE_CONSUMERS,
    catalogue.QUEUE_MISSING,
    catalogue.QUEUE_DEAD,
    catalogue.QUEUE_DELAYED,
    catalogue.QUEUE_UNACKED,
)
_LETTERS: Final = (catalogue.LETTERS, catalogue.LETTERS_OLDEST)
_BEAT: Final = (catalogue.LEADER_KNOWN, catalogue.LEADER_TERM, catalogue.LEADER_TICK)


def attach_queues(hardening: Hardening, *, queues: Iterable[str] = (), every: float = EVERY) -> Callable[[], None]:
    """Have this process tell of queues too, as ``hardened_metrics_queues`` asks for; returns how to end that.

    To be called after ``hardening.metrics.keep_here()``. Connects to nothing at once, and raises nothing.
    """
    if not hardening.settings.metrics:
        return lambda: None
    metrics = QueueMetrics(hardening, queues=queues, every=every)
    metrics.start()
    return metrics.stop


class QueueMetrics:
    """See the module.

    Args:
        queues: Further ones than the app knows of.
        every: Seconds between two readings.
    """

    def __init__(
        self,
        hardening: Hardening,
        *,
        queues: Iterable[str] = (),
        every: float = EVERY,
        source: Callable[[Hardening], QueueSource] = source_of,
    ) -> None:
        self._hardening = hardening
        self._registry = hardening.metrics.registry
        self._more = tuple(queues)
        self._every = every
        self._make_source = source
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardened-queues", daemon=True)
        self._names: tuple[str, ...] = ()
        self._names_until = 0.0
        self._answered: dict[str, float] = {}
        self._away: set[str] = set()
        self._absent: set[str] = set()
        self.turned = time.monotonic()
        """When its thread last began to ask somebody; of the monotonic clock."""

        self._broker_answered: float | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, within: float = 1.0) -> None:
        """End it; a reading that hangs is left behind. Twice changes nothing."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(within)
        if not self._thread.is_alive():
            self._close()

    @property
    def answered_ago(self) -> float | None:
        """Seconds since the broker last answered; ``None``: it has not yet."""
        return None if self._broker_answered is None else time.monotonic() - self._broker_answered

    def read(self) -> None:
        """Ask everybody once. Never raises."""
        self._ask("broker", self._read_broker, _BROKER)
        self._ask("dead_letters", self._read_letters, _LETTERS)
        self._ask("beat", self._read_leader, _BEAT)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.read()
            self._stopping.wait(self._every)
        self._close()

    def _close(self) -> None:
        if "_source" in self.__dict__:
            self._source.close()

    def _ask(self, store: str, read: Callable[[], bool], families: tuple[Family, ...]) -> None:
        if store in self._absent:
            return
        self.turned = time.monotonic()
        now = time.time()
        if store not in self._answered:
            # Until it first answers its silence counts from here, and from the first is as long as that of a store
            # whose numbers are shown no more. By that an alert tells "not shown" from "none".
            self._answered[store] = now - KEEP
            self._registry.set(catalogue.QUEUE_SCRAPED, (store,), now - KEEP)
            self._registry.zero(catalogue.QUEUE_ERRORS, [(store,)])
        try:
            if not read():
                self._leave_out(store)
                return
        except Exception as problem:  # noqa: BLE001 - whatever a store raises, the others are asked all the same
            self._failed(store, problem, families)
            return
        self._answered[store] = time.time()
        if store == "broker":
            self._broker_answered = time.monotonic()
        self._registry.set(catalogue.QUEUE_SCRAPED, (store,), self._answered[store])
        if store in self._away:
            self._away.discard(store)
            logger.info("%s answers again", store)

    def _leave_out(self, store: str) -> None:
        """There is no such store: nothing is said of it."""
        self._absent.add(store)
        for family in (catalogue.QUEUE_SCRAPED, catalogue.QUEUE_ERRORS):
            series = self._registry.values(family)
            series.pop((store,), None)
            self._registry.replace(family, series)

    def _failed(self, store: str, problem: Exception, families: tuple[Family, ...]) -> None:
        self._registry.inc(catalogue.QUEUE_ERRORS, (store,))
        expected = isinstance(problem, (StoreUnavailableError, ConfigurationError))
        if store not in self._away:
            self._away.add(store)
            logger.warning("%s could not be read: %s", store, problem, exc_info=None if expected else problem)
        if time.time() - self._answered[store] > max(KEEP, 3 * self._every):
            for family in families:
                self._registry.replace(family, {})

    # --- the stores ------------------------------------------------------------------------------------------

    @cached_property
    def _source(self) -> QueueSource:
        return self._make_source(self._hardening)

    def queues(self) -> tuple[str, ...]:
        """Those that are asked for."""
        if time.monotonic() >= self._names_until:
            self._names = queue_names(self._hardening.app, self._more)
            self._names_until = time.monotonic() + _NAMES_FOR
        return self._names

    def _read_broker(self) -> bool:
        reading = self._source.read(self.queues())
        replace, of = self._registry.replace, reading.queues
        replace(catalogue.QUEUE_WAITING, {(queue,): one.waiting for queue, one in of.items()})
        ages: dict[Labels, float] = {(q,): one.oldest for q, one in of.items() if one.oldest is not None}
        replace(catalogue.QUEUE_OLDEST, ages, fold=max)
        replace(catalogue.QUEUE_CONSUMERS, {(q,): one.consumers for q, one in of.items() if one.consumers is not None})
        replace(catalogue.QUEUE_MISSING, {(queue,): int(not there) for queue, there in reading.exists.items()})
        replace(catalogue.QUEUE_DEAD, {(queue,): count for queue, count in reading.dead_letter_queues.items()})
        replace(catalogue.QUEUE_DELAYED, _one(reading.delayed))
        replace(catalogue.QUEUE_UNACKED, _one(reading.unacked))
        return True

    def _read_letters(self) -> bool:
        if self._hardening.settings.dead_letter_store == "memory":
            return False  # each process has its own
        stats = self._hardening.dead_letters.stats()
        pairs: dict[Labels, float] = {(queue, why): n for (queue, why), n in stats.by_queue_and_reason.items()}
        if not pairs:  # a store of the project's that does not count them together
            pairs = {(queue, OTHER): count for queue, count in stats.by_queue.items()}
        self._registry.replace(catalogue.LETTERS, pairs)
        age = None if stats.oldest is None else max(0.0, time.time() - stats.oldest)
        self._registry.replace(catalogue.LETTERS_OLDEST, _one(age))
        return True

    def _read_leader(self) -> bool:
        from celery_hardened.beat.leader_store import LeaderStore
        from celery_hardened.beat.names import Keys

        try:
            redis = self._hardening.redis
        except ConfigurationError:
            return False
        record = LeaderStore(redis, Keys(self._hardening.prefix), ttl=self._hardening.settings.beat_ttl).read()
        replace = self._registry.replace
        if not record.term:  # no beat of ours has ever led: this app does without
            for family in _BEAT:
                replace(family, {})
            return True
        replace(catalogue.LEADER_KNOWN, _one(int(record.leads)))
        replace(catalogue.LEADER_TERM, _one(record.term))
        # In this host's time: the record is in the server's.
        tick = None if record.tick is None else time.time() - max(0.0, record.server - record.tick)
        replace(catalogue.LEADER_TICK, _one(tick))
        return True


def _one(value: float | None) -> dict[Labels, float]:
    """The one series of a gauge without labels, or none."""
    return {} if value is None else {(): value}
