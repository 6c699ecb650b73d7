"""Hardening for Celery: the public names, and nothing else.

Everything a user imports comes from here. Everything else may move.
"""

from celery_hardened.app import harden
from celery_hardened.dead_letter.contract import DeadLetterStore, Query, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dedup.decorator import deduplicate
from celery_hardened.errors import (
    CheckpointError,
    ClaimBusyError,
    ClaimLostError,
    ConfigurationError,
    DeadLetterError,
    DeadLetterNotFoundError,
    DuplicateTaskError,
    EnvelopeError,
    HardenedError,
    IdempotencyError,
    KeyMismatchError,
    MalformedMessageError,
    NotFiredError,
    NotHardenedError,
    NotSentError,
    PayloadCorruptError,
    PayloadError,
    PayloadMissingError,
    PayloadTooLargeError,
    PublishFailedError,
    RedriveRefusedError,
    ResultNotKeptError,
    StoreUnavailableError,
    TaskExitError,
    TaskMemoryError,
    TaskProcessLostError,
    UnusableKeyError,
)
from celery_hardened.hardening import Hardening
from celery_hardened.idempotency.decorator import idempotent
from celery_hardened.logs import JsonFormatter
from celery_hardened.pipeline.execution import current_execution
from celery_hardened.task import HardenedTask

__all__ = [
    "CheckpointError",
    "ClaimBusyError",
    "ClaimLostError",
    "ConfigurationError",
    "DeadLetter",
    "DeadLetterError",
    "DeadLetterNotFoundError",
    "DeadLetterStore",
    "DuplicateTaskError",
    "EnvelopeError",
    "HardenedError",
    "HardenedTask",
    "Hardening",
    "IdempotencyError",
    "JsonFormatter",
    "KeyMismatchError",
    "MalformedMessageError",
    "NotFiredError",
    "NotHardenedError",
    "NotSentError",
    "PayloadCorruptError",
    "PayloadError",
    "PayloadMissingError",
    "PayloadTooLargeError",
    "PublishFailedError",
    "Query",
    "RedriveRefusedError",
    "ResultNotKeptError",
    "StoreUnavailableError",
    "StoredLetter",
    "TaskExitError",
    "TaskMemoryError",
    "TaskProcessLostError",
    "UnusableKeyError",
    "current_execution",
    "deduplicate",
    "harden",
    "idempotent",
]
