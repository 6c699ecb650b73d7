"""What users' own tests import."""

from __future__ import annotations

from celery_hardened.checkpoint.memory import InMemoryCheckpointStore
from celery_hardened.claim_check.memory import InMemoryPayloadStore
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.dedup.memory import InMemoryWindowStore
from celery_hardened.idempotency.memory import InMemoryClaimStore
from celery_hardened.poison.memory import InMemoryDeathStore
from celery_hardened.testing.inline import Inline, inline
from celery_hardened.testing.keys import key_of
from celery_hardened.testing.twice import assert_idempotent

__all__ = [
    "InMemoryCheckpointStore",
    "InMemoryClaimStore",
    "InMemoryDeadLetterStore",
    "InMemoryDeathStore",
    "InMemoryPayloadStore",
    "InMemoryWindowStore",
    "Inline",
    "assert_idempotent",
    "inline",
    "key_of",
]
