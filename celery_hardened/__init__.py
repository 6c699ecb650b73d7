"""Hardening for Celery: the public names, and nothing else.

Everything a user imports comes from here. Everything else may move.
"""

from celery_hardened.app import harden
from celery_hardened.dead_letter.contract import DeadLetterStore, Query, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.errors import (
    ConfigurationError,
    DeadLetterError,
    DeadLetterNotFoundError,
    EnvelopeError,
    HardenedError,
    MalformedMessageError,
    NotHardenedError,
    RedriveRefusedError,
    StoreUnavailableError,
    TaskExitError,
    TaskMemoryError,
    TaskProcessLostError,
)
from celery_hardened.hardening import Hardening
from celery_hardened.logs import JsonFormatter
from celery_hardened.task import HardenedTask

__all__ = [
    "ConfigurationError",
    "DeadLetter",
    "DeadLetterError",
    "DeadLetterNotFoundError",
    "DeadLetterStore",
    "EnvelopeError",
    "HardenedError",
    "HardenedTask",
    "Hardening",
    "JsonFormatter",
    "MalformedMessageError",
    "NotHardenedError",
    "Query",
    "RedriveRefusedError",
    "StoreUnavailableError",
    "StoredLetter",
    "TaskExitError",
    "TaskMemoryError",
    "TaskProcessLostError",
    "harden",
]
