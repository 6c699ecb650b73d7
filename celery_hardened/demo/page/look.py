"""One look at everything that runs: what processes say of themselves, the broker's queues, the letters, the lead."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from celery_hardened import Hardening, Query
from celery_hardened.beat.leader_store import LeaderStore
from celery_hardened.beat.names import Keys
from celery_hardened.demo.page.counts import Counts, Scrape
from celery_hardened.demo.page.numbers import LeaderRow, LetterRow, Numbers, ProcessRow, QueueRow, TaskRow
from celery_hardened.metrics import catalogue
from celery_hardened.pipeline.queue_source import source_of

#: Seconds that a process may take to answer.
_PATIENCE: Final = 2.0

#: Letters that are shown one by one.
_LATEST: Final = 6

#: Loopback only: whatever proxy the user's shell names is not asked.
_opener: Final = build_opener(ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Watched:
    """A process that tells of itself.

    Args:
        key: No other process's, before or after.

        health: Its ``$HARDENED_HEALTH_DIR``.
    """

    key: str
    name: str
    kind: str
    pid: int
    health: Path

    def url(self, path: str) -> str | None:
        """Where *path* is; ``None`` while it has not said so."""
        try:
            return (self.health / "http").read_text("ascii").strip().rstrip("/") + path
        except OSError:
            return None


class Look:
    """Used by one thread.

    Args:
        queues: Those that are shown.

        began: When the demo began, seconds since the epoch.

        watched: The processes of this moment.

        told: What the demo says of itself: the scene, and how many messages it has sent.
    """

    def __init__(
        self,
        hardening: Hardening,
        queues: Iterable[str],
        *,
        began: float,
        watched: Callable[[], Iterable[Watched]],
        told: Callable[[], tuple[str, int]],
    ) -> None:
        self._hardening = hardening
        self._queues = tuple(queues)
        self._began = began
        self._watched = watched
        self._told = told
        self._counts = Counts()
        self._source = source_of(hardening)
        self._leader = LeaderStore(hardening.redis, Keys(hardening.prefix), ttl=hardening.settings.beat_ttl)

    def now(self) -> Numbers:
        """All numbers. Raises what stores raise."""
        processes = tuple(self._process(one) for one in self._watched())
        reading = self._source.read(self._queues)
        letters = self._hardening.dead_letters
        scene, sent = self._told()
        return Numbers(
            elapsed=time.time() - self._began,
            scene=scene,
            sent=sent,
            queues=tuple(QueueRow(name, one.waiting, one.oldest) for name, one in reading.queues.items()),
            delayed=reading.delayed,
            unacked=reading.unacked,
            tasks=tuple(TaskRow(task, outcomes) for task, outcomes in self._counts.outcomes().items()),
            letters=letters.stats().by_queue_and_reason,
            latest=tuple(self._letter(stored) for stored in letters.find(Query(), limit=_LATEST).letters),
            leader=self._leads(),
            processes=processes,
        )

    def close(self) -> None:
        """Let go of the broker."""
        self._source.close()

    def _letter(self, stored: Any) -> LetterRow:
        of = stored.letter
        error = ": ".join(filter(None, [of.error_type, of.error_message]))
        return LetterRow(stored.stored_at - self._began, of.task or "", of.task_id or of.id, of.reason, error)

    def _leads(self) -> LeaderRow | None:
        record = self._leader.read()
        if not record.leads or record.since is None or record.left is None:
            return None
        return LeaderRow(
            str(record.identity.get("pid", "?")), record.term, max(0.0, record.server - record.since), record.left
        )

    def _process(self, of: Watched) -> ProcessRow:
        text = self._answer(of, "/metrics")
        if text is None:
            return ProcessRow(of.name, of.kind, of.pid, "starting" if of.url("/") is None else "silent")
        scrape = Scrape(text)
        self._counts.take(of.key, scrape)
        ready, because = _verdict(self._answer(of, "/readyz"))
        live = ready or _verdict(self._answer(of, "/livez"))[0]
        return ProcessRow(
            of.name,
            of.kind,
            of.pid,
            "ready" if ready else "alive" if live else "silent",
            because,
            active=scrape.sum(catalogue.WORKER_ACTIVE),
            places=scrape.sum(catalogue.WORKER_CONCURRENCY),
            children_lost=scrape.sum(catalogue.CHILDREN_LOST),
        )

    def _answer(self, of: Watched, path: str) -> str | None:
        """What it answers, be it 200 or 503; ``None`` if it does not."""
        url = of.url(path)
        if url is None:
            return None
        try:
            with closing(_opener.open(url, timeout=_PATIENCE)) as answer:
                return str(answer.read().decode("utf-8", "replace"))
        except HTTPError as refused:
            with closing(refused):
                return refused.read().decode("utf-8", "replace")
        except (URLError, OSError, ValueError):
            return None


def _verdict(text: str | None) -> tuple[bool, str]:
    with suppress(ValueError, KeyError, TypeError):
        said = json.loads(text or "")
        return bool(said["good"]), str(said["because"])
    return False, ""
