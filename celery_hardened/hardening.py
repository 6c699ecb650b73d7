"""What one hardened app knows: its settings, its stores, its switches. All lazy.

Nothing here connects or refuses when it is made: at import time many projects
have no broker URL yet. What needs a Redis says so when it is first used.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from celery import Celery

from celery_hardened.dead_letter.contract import DeadLetterStore, Query, Retention, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.effect_stores import EffectStores
from celery_hardened.errors import ConfigurationError
from celery_hardened.marks import Marks
from celery_hardened.metrics.metrics import Metrics
from celery_hardened.metrics.registry import CAPS
from celery_hardened.poison.contract import DeathStore, work_id
from celery_hardened.poison.memory import InMemoryDeathStore
from celery_hardened.settings import Settings
from celery_hardened.switches import Switches

if TYPE_CHECKING:
    from celery_hardened.transport.delivery import Delivery

logger = logging.getLogger("celery_hardened")

Level = Literal["hardened", "all"]

_ATTRIBUTE = "_celery_hardened"

_hardened: WeakSet[Celery] = WeakSet()


class Hardening:
    """The state that ``harden(app)`` gives an app. ``Hardening.of(app)`` finds it."""

    def __init__(self, app: Celery, *, tasks: Level) -> None:
        self.app = app
        self.tasks: Level = tasks
        self.preset: dict[str, Any] = {}
        """Celery settings we laid in, for the log line."""
        self.cut_short: list[Any] = []
        """Requests whose run a cold shutdown ended; their messages go back."""
        self.observed: Counter[str] = Counter()
        """What a dry run would have done in this process, and how often."""
        self._queues_adopted = False

    @staticmethod
    def of(app: Celery) -> Hardening | None:
        """The hardening of *app*, or ``None`` if ``harden(app)`` was never called."""
        return getattr(app, _ATTRIBUTE, None)

    @staticmethod
    def expect(app: Celery) -> Hardening:
        """The hardening of an app that has one. Raises ``ConfigurationError`` otherwise."""
        found = Hardening.of(app)
        if found is None:
            raise ConfigurationError(
                f"app {app.main!r} was never hardened. Call celery_hardened.harden(app) right after it is created."
            )
        return found

    def attach(self) -> None:
        setattr(self.app, _ATTRIBUTE, self)
        _hardened.add(self.app)

    @staticmethod
    def elsewhere(task: Any) -> bool:
        """Does a hardened app of this process run the same function under the same name?"""
        mine = _function(task)
        return mine is not None and any(_function(app._tasks.get(task.name)) is mine for app in _hardened)

    @cached_property
    def settings(self) -> Settings:
        """Read once, when they are first needed. Raises ``ConfigurationError``."""
        settings = Settings.from_conf(self.app.conf)
        if settings.amqp_queues is not None:
            self._use_quorum_queues(settings)
        return settings

    def _use_quorum_queues(self, settings: Settings) -> None:
        """For producers and workers alike: whoever comes first declares the queue."""
        if self._queues_adopted:
            return
        self._queues_adopted = True
        from celery_hardened.dead_letter.amqp_install import use_quorum_queues
        from celery_hardened.dead_letter.drain import DrainInto, drain_step

        use_quorum_queues(self.app, settings)
        if settings.observe:
            return  # queues that are quorum already must be declared as such; nothing is taken out of them
        into = DrainInto(
            store=lambda: self.dead_letters,
            recorded_deaths=self.recorded_deaths,
            version=lambda: self.version,
            is_kept=self._is_kept,
        )
        self.app.steps["consumer"].add(drain_step(into))

    def _is_kept(self, letter: DeadLetter, new: bool) -> None:
        from celery_hardened.pipeline.letters import is_kept

        is_kept(self, letter, new=new)

    @cached_property
    def metrics(self) -> Metrics:
        """What happens in this process is counted here; see ``Metrics``."""
        caps = {**CAPS, "task": self.settings.metrics_max_tasks}
        return Metrics(on=self.settings.metrics, caps=caps)

    @cached_property
    def redis(self) -> Any:
        """The client for our own records; connects on first use, survives forks."""
        # Imported here, like all that needs redis: it takes longer than the rest of us together,
        # and every celery command of an environment imports this package.
        from celery_hardened.redis_connection import connect

        return connect(self.app, self.settings)

    @cached_property
    def prefix(self) -> str:
        from celery_hardened.redis_connection import key_prefix

        return key_prefix(self.app, self.settings)

    @cached_property
    def delivery(self) -> Delivery | None:
        """What this process's channels to a Redis broker share; ``None`` on kombu's own transport."""
        if self.settings.observe or self.settings.redis_delivery == "stock":
            return None
        from celery_hardened.transport.delivery import Delivery

        of = self.settings
        return Delivery(prefix=of.key_prefix, lease=of.lease, max_eta=of.max_eta)

    @cached_property
    def broker_redis(self) -> Any:
        """A client of the Redis that messages come from; connects on first use, survives forks."""
        from celery_hardened.redis_connection import client_of

        return client_of(self.app.connection_for_read())

    @property
    def lease_index(self) -> str:
        """Key of kombu's index of deliveries, whole."""
        options = self.app.conf.broker_transport_options or {}
        return f"{options.get('global_keyprefix') or ''}{options.get('unacked_index_key') or 'unacked_index'}"

    @cached_property
    def dead_letters(self) -> DeadLetterStore:
        """The store named by ``hardened_dead_letter_store``."""
        name = self.settings.dead_letter_store
        if name == "memory":
            return self.eager_dead_letters
        if name == "redis":
            from celery_hardened.dead_letter.store import RedisDeadLetterStore

            return RedisDeadLetterStore(self.redis, prefix=self.prefix, retention=self.retention)
        if name == "django" or name.startswith("django:"):
            alias = name.partition(":")[2] or "default"
            return _load_store("celery_hardened.contrib.django.dead_letters:store_of", self.app, alias)
        return _load_store(name, self.app)

    @cached_property
    def eager_dead_letters(self) -> InMemoryDeadLetterStore:
        """Where letters of eager tasks go, whatever the store: unit tests need no Redis."""
        return InMemoryDeadLetterStore(retention=self.retention)

    @cached_property
    def effects(self) -> EffectStores:
        """The stores behind effects that happen once."""
        return EffectStores(self)

    @cached_property
    def deaths(self) -> DeathStore:
        if self.settings.dead_letter_store == "memory" and self.settings.redis_url is None:
            return InMemoryDeathStore()
        from celery_hardened.poison.store import RedisDeathStore

        return RedisDeathStore(self.redis, prefix=self.prefix, memory=self.settings.death_memory)

    def recorded_deaths(self, letter: DeadLetter) -> int:
        """Deaths on record of the work that *letter* is about. Raises ``StoreUnavailableError``.

        A broker's delivery limit counts graceful returns too; this tells whether anything died.
        """
        key = Marks.read(letter.headers).key
        work = work_id(task=letter.task or "", root_id=letter.root_id, key=key, body=letter.body)
        return max(letter.deaths, self.deaths.peek(work).deaths)

    @cached_property
    def switches(self) -> Switches:
        if self.settings.dead_letter_store == "memory" and self.settings.redis_url is None:
            stored: dict[bytes, bytes] = {}

            def write(name: str, value: str | None) -> None:
                stored.pop(name.encode(), None)
                if value is not None:
                    stored[name.encode()] = value.encode()

            return Switches(read=lambda: dict(stored), write=write, ttl=self.settings.switch_ttl)

        from celery_hardened.redis_connection import answered

        key = f"{self.prefix}:switches"

        def read_redis() -> dict[bytes, bytes]:
            with answered("reading the kill switches"):
                return dict(self.redis.hgetall(key))

        def write_redis(name: str, value: str | None) -> None:
            with answered("throwing a kill switch"):
                if value is None:
                    self.redis.hdel(key, name)
                else:
                    self.redis.hset(key, name, value)

        return Switches(read=read_redis, write=write_redis, ttl=self.settings.switch_ttl)

    @property
    def retention(self) -> Retention:
        of = self.settings
        return Retention(
            max_age=of.dead_letter_max_age,
            max_count=of.dead_letter_max_count,
            max_count_per_task=of.dead_letter_max_count_per_task,
            max_bytes=of.dead_letter_max_bytes,
            closed_max_age=of.dead_letter_closed_max_age,
        )

    @cached_property
    def version(self) -> str | None:
        """Code version for dead letters: ``hardened_version``, $HARDENED_VERSION, or the git commit."""
        return self.settings.version or os.environ.get("HARDENED_VERSION") or _git_commit()

    def prepare(self) -> None:
        """Build what a worker will need, connecting to nothing. Raises ``ConfigurationError``."""
        from celery_hardened.pipeline.payload import store_of

        for part in (self.settings, self.dead_letters, self.deaths, self.switches, store_of(self)):
            logger.debug("prepared %s", type(part).__name__)

    def redrive(self, query: Query, **options: Any) -> Any:
        """Send the letters that match again; see ``celery_hardened.dead_letter.redrive.redrive``."""
        from celery_hardened.dead_letter.parking import group_gone
        from celery_hardened.dead_letter.redrive import redrive

        options.setdefault("redrive_max", self.settings.redrive_max)
        return redrive(
            self.app,
            self.dead_letters,
            query,
            parked_group_alive=lambda letter: group_gone(self.app, letter),
            **options,
        )

    def discard(self, letter_ids: Sequence[str], *, by: str, why: str) -> int:
        """Close letters for good; a parked one now fails its chord and fires its errbacks. How many."""
        from celery_hardened.dead_letter.parking import fail_parked
        from celery_hardened.dead_letter.redrive import discard_letters
        from celery_hardened.pipeline import payload

        def fail_its_chord(stored: StoredLetter) -> None:
            if stored.letter.parked:
                fail_parked(self.app, stored.letter)

        closed = discard_letters(self.dead_letters, letter_ids, by=by, why=why, closing=fail_its_chord)
        for stored in closed:
            payload.discard(self, stored.letter)
        return len(closed)


def _function(task: Any) -> Any:
    run = getattr(task, "__wrapped__", None)
    return getattr(run, "__func__", run)


def _load_store(name: str, app: Celery, *more: str) -> DeadLetterStore:
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigurationError(
            f"hardened_dead_letter_store is {name!r}: it must be 'redis', 'memory', 'django', 'django:<alias>' or "
            f"'module:factory', and this one could not be loaded ({problem})."
        ) from problem
    store: DeadLetterStore = factory(app, *more)
    return store


def _git_commit() -> str | None:
    """The commit of the code that is running, if its main module lies in a checkout."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    here = Path(main).resolve().parent if main else Path.cwd()
    for place in dict.fromkeys((Path.cwd(), here)):
        try:
            found = subprocess.run(
                ["git", "rev-parse", "--short=12", "HEAD"],  # noqa: S607
                cwd=place,
                capture_output=True,
                text=True,
                timeout=2,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        if found.returncode == 0:
            return found.stdout.strip() or None
    return None
