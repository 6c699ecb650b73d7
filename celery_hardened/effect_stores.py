"""The stores of claims and checkpoints. All lazy, like ``Hardening``."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

from celery_hardened.checkpoint.contract import CheckpointStore
from celery_hardened.checkpoint.memory import InMemoryCheckpointStore
from celery_hardened.idempotency.contract import ClaimStore
from celery_hardened.idempotency.memory import InMemoryClaimStore
from celery_hardened.idempotency.policy import Idempotent
from celery_hardened.idempotency.renewal import Held, Renewals

logger = logging.getLogger("celery_hardened.idempotency")

if TYPE_CHECKING:
    from celery_hardened.hardening import Hardening
    from celery_hardened.idempotency.database import DatabaseStore
    from celery_hardened.idempotency.store import RedisClaimStore


class EffectStores:
    """Where one app keeps what makes effects happen once; connects on first use."""

    def __init__(self, hardening: Hardening) -> None:
        self._hardening = hardening
        self._databases: dict[str, DatabaseStore] = {}

    @property
    def _in_memory(self) -> bool:
        settings = self._hardening.settings
        return settings.dead_letter_store == "memory" and settings.redis_url is None

    # --- idempotency ------------------------------------------------------------------------------

    def claims_for(self, policy: Idempotent, *, eager: bool = False) -> ClaimStore:
        """The store that *policy* names. Eager tasks need no Redis: theirs are kept in this process."""
        if policy.store == "database":
            return self.database_claims(policy.using)
        return self.eager_claims if eager else self.claims

    @cached_property
    def claims(self) -> ClaimStore:
        if self._in_memory:
            return self.eager_claims
        from celery_hardened.idempotency.store import RedisClaimStore

        return RedisClaimStore(self._hardening.redis, prefix=self._hardening.prefix)

    @cached_property
    def eager_claims(self) -> InMemoryClaimStore:
        return InMemoryClaimStore()

    def database_claims(self, using: str) -> DatabaseStore:
        """Marks in the project's own database; *using* is Django's alias of it."""
        if using not in self._databases:
            from celery_hardened.idempotency.database import open_database

            store = open_database(self._hardening.app, self._hardening.settings, using=using)
            self._databases.setdefault(using, store)
        return self._databases[using]

    @cached_property
    def renewals(self) -> Renewals:
        """The thread that renews the claims of this process, on a connection of its own."""
        if self._in_memory:
            return Renewals(lambda: self.eager_claims, lost=report_lost)

        def own_store() -> RedisClaimStore:
            from celery_hardened.idempotency.store import RedisClaimStore, for_renewals
            from celery_hardened.redis_connection import connect

            settings = self._hardening.settings
            own = for_renewals(connect(self._hardening.app, settings), lease=settings.lease)
            return RedisClaimStore(own, prefix=self._hardening.prefix)

        return Renewals(own_store, lost=report_lost)

    # --- checkpoints ------------------------------------------------------------------------------

    @cached_property
    def checkpoints(self) -> CheckpointStore:
        if self._in_memory:
            return self.eager_checkpoints
        from celery_hardened.checkpoint.store import RedisCheckpointStore

        return RedisCheckpointStore(self._hardening.redis, prefix=self._hardening.prefix)

    @cached_property
    def eager_checkpoints(self) -> InMemoryCheckpointStore:
        return InMemoryCheckpointStore()


def report_lost(held: Held) -> None:
    """Another run has a key that a run of this process still works on."""
    logger.error(
        "lost key %s to another run while this one goes on: both may have an effect. self.execution.check() says so",
        held.key,
        extra={"key": held.key, "reason": "claim_lost"},
    )
