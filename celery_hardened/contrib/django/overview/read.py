"""How those who know are asked. Each of these is called by one thread at a time, and may take its time.

What each costs, at most: the broker one pipelined call (RabbitMQ: a passive declare for each queue), Redis one call
and a second one when schedules have missed runs that were not seen before, the store of dead letters twelve small
ones, the database one query. Nothing is ever asked of workers themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery_hardened.attendance.store import ROLL_ANSWERS, ask_roll, roll_told
from celery_hardened.attendance.store import Keys as WorkerKeys
from celery_hardened.beat.leader_store import LEADER_ANSWERS, ask_who_leads, leader_told, own_connection
from celery_hardened.beat.names import Keys as BeatKeys
from celery_hardened.beat.record import Record
from celery_hardened.beat.steps import decoded, encoded
from celery_hardened.contrib.django.overview.facts import OTHERS, Beats, Letters, Missed, Queues, Workers
from celery_hardened.dead_letter.contract import Query
from celery_hardened.errors import ConfigurationError
from celery_hardened.hardening import Hardening
from celery_hardened.metrics.queue_reading import BrokerReading, QueueSource
from celery_hardened.metrics.rules.workers import WINDOW
from celery_hardened.pipeline.queue_names import queue_names
from celery_hardened.pipeline.queue_source import source_of
from celery_hardened.redis_connection import answered

#: Seconds that our Redis may take to connect, and for one answer.
PATIENCE: Final = 1.0

#: What a slot may become because no beat could fire it in time.
MISSED: Final = ("coalesced", "expired", "skipped", "beyond_max_catchup", "not_sent")

#: Seconds that a missed run is a recent one, as in the alert.
RECENT: Final = 3600.0

#: Queues whose dead letters of the last minutes are counted one by one; the rest is one number.
QUEUES: Final = 10

#: Schedules that are looked at, and whose history is read in one reading.
SCHEDULES: Final = 5000
_HISTORIES: Final = 50

#: A gap between two looks, in seconds, from which on nobody knows whether the queue was empty meanwhile.
_GAP: Final = 60.0


class AskBroker:
    """Queues, in the broker that workers take from."""

    who = "the broker"

    def __init__(self, hardening: Hardening) -> None:
        self._hardening = hardening
        self._source: QueueSource | None = None
        self._kind = ""
        self._looked: Mapping[str, tuple[float, float]] = {}

    def read(self) -> Queues:
        """Raises ``StoreUnavailableError``, and whatever a transport raises."""
        if self._source is None:
            transport: Any = self._hardening.app.connection_for_read().get_transport_cls()
            self._kind = str(getattr(transport, "driver_type", ""))
            self._source = source_of(self._hardening)
        names = queue_names(self._hardening.app)
        reading = self._source.read(names)
        return Queues(kind=self._kind, reading=reading, names=names, waiting_for=self._waiting_for(reading))

    def _waiting_for(self, reading: BrokerReading) -> dict[str, float]:
        now = time.monotonic()
        looked: dict[str, tuple[float, float]] = {}
        for name, queue in reading.queues.items():
            if queue.waiting:
                since, last = self._looked.get(name, (now, now))
                looked[name] = (since if now - last <= _GAP else now, now)
        self._looked = looked
        return {name: now - since for name, (since, _) in looked.items()}


class AskRedis:
    """Workers, beats and schedules, in the Redis of our records."""

    who = "Redis"

    def __init__(self, hardening: Hardening) -> None:
        self._hardening = hardening
        self._client: Any = None
        self._known: dict[str, tuple[int, tuple[tuple[float, int], ...]]] = {}
        """By schedule: its missed runs so far, and when those of its history were passed over, and how many.
        In the order in which they were read."""

    def read(self) -> tuple[Workers | None, Beats] | None:
        """``None``: the app has no Redis. Raises ``StoreUnavailableError``: it does not answer."""
        hardening = self._hardening
        if self._client is None:
            try:
                self._client = own_connection(hardening.redis, timeout=PATIENCE)
            except ConfigurationError:  # a broker that is none, and dead letters in a database
                return None
        keys = BeatKeys(hardening.prefix)
        with answered("reading how workers and beats are"), self._client.pipeline(transaction=False) as pipe:
            ask_roll(pipe, WorkerKeys(hardening.prefix))
            ask_who_leads(pipe, keys)
            pipe.hlen(keys.records)
            pipe.hlen(keys.problems)
            pipe.hscan(keys.records, 0, count=SCHEDULES)
            answers: list[Any] = pipe.execute()
        roll = roll_told(answers[:ROLL_ANSWERS])
        leader = leader_told(answers[ROLL_ANSWERS : ROLL_ANSWERS + LEADER_ANSWERS])
        records, unusable, (cursor, found) = answers[-3:]
        missed = _missed(found)
        beats = Beats(
            leader=leader,
            records=records,
            unusable=unusable,
            missed=self._recent(keys, missed, leader.server),
            missed_ever=sum(missed.values()),
            partial=bool(cursor),
        )
        # In a dry run workers say nothing, and that nobody speaks means nothing.
        told = roll.present or not hardening.settings.observe
        return Workers(present=roll.present, lost=roll.lost) if told else None, beats

    def _recent(self, keys: BeatKeys, missed: Mapping[str, int], now: float) -> tuple[Missed, ...]:
        """Histories are read of schedules that have missed more than when they were read last."""
        self._known = {name: known for name, known in self._known.items() if name in missed}
        # Those first that were never read, or longest ago: else the others' turn would never come where many miss on.
        turns = {name: turn for turn, name in enumerate(self._known, 1)}
        changed = [name for name, total in missed.items() if self._known.get(name, (0,))[0] != total]
        ask = sorted(changed, key=lambda name: turns.get(name, 0))[:_HISTORIES]
        if ask:
            with answered("reading what schedules missed"), self._client.pipeline(transaction=False) as pipe:
                for name in ask:
                    pipe.lrange(encoded(keys.history(name)), 0, -1)
                for name, lines in zip(ask, pipe.execute(), strict=True):
                    self._known.pop(name, None)  # to the end
                    self._known[name] = missed[name], _misses(lines)
        found = [
            Missed(name, sum(count for at, count in misses if now - at <= RECENT), max(0.0, now - misses[0][0]))
            for name, (_, misses) in self._known.items()
            if misses
        ]
        return tuple(sorted(found, key=lambda one: one.ago))


def _missed(records: Mapping[bytes, bytes]) -> dict[str, int]:
    found = {}
    for name, text in records.items():
        if b'"passed"' in text:  # to parse thousands of records takes longer than to read them
            try:
                passed = Record.parse(text).passed
            except ValueError:
                continue
            total = sum(passed.get(reason, 0) for reason in MISSED)
            if total:
                found[decoded(name)] = total
    return found


def _misses(lines: Sequence[bytes]) -> tuple[tuple[float, int], ...]:
    found = []
    for line in lines:
        try:
            said = json.loads(line)
            count = int(said.get("missed", 0) if said["outcome"] == "fired" else said.get("count", 1))
            if count and said["outcome"] in (*MISSED, "fired"):
                found.append((float(said["at"]), count))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return tuple(found)


class AskLetters:
    """Dead letters, in the store that the app has."""

    who = "the store of dead letters"

    def __init__(self, hardening: Hardening) -> None:
        self._hardening = hardening

    def read(self) -> Letters | None:
        """``None``: each process has its own. Raises ``StoreUnavailableError`` or ``ConfigurationError``."""
        if self._hardening.settings.dead_letter_store == "memory":
            return None
        store = self._hardening.dead_letters
        stats = store.stats()
        now = time.time()
        recently: dict[str, int] = {}
        if stats.newest is not None and now - stats.newest <= WINDOW:
            since = now - WINDOW
            total = store.count(Query(since=since))
            for queue in list(stats.by_queue)[:QUEUES]:
                recently[queue] = store.count(Query(queue=queue, since=since))
            recently[OTHERS] = total - sum(recently.values())
        return Letters(
            open=stats.open,
            oldest=None if stats.oldest is None else max(0.0, now - stats.oldest),
            by_queue=dict(stats.by_queue),
            recently={queue: number for queue, number in recently.items() if number > 0},
        )


class AskTables:
    """How many schedules are enabled, in the tables and in the app's configuration."""

    who = "the database"

    def __init__(self, hardening: Hardening) -> None:
        self._hardening = hardening

    def read(self) -> int:
        from django_celery_beat.models import PeriodicTask

        own = "celery.backend_cleanup"  # Celery adds it by itself, and nobody waits for it
        rows = PeriodicTask.objects.filter(enabled=True).exclude(task=own).count()
        entries = self._hardening.app.conf.beat_schedule or {}
        # A beat on the tables writes the entries of the configuration into them: they are not added up.
        return max(int(rows), sum(1 for entry in entries.values() if _task_of(entry) != own))


def _task_of(entry: Any) -> Any:
    return entry.get("task") if isinstance(entry, Mapping) else getattr(entry, "task", None)
