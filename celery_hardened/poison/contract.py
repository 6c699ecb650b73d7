"""What every store of deaths promises, and the names of what it keeps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from celery_hardened.poison.policy import Record


def work_id(*, task: str, root_id: str | None, key: str | None, body: bytes | str) -> str:
    """Name the logical work, which may outlive a task id.

    The idempotency key if there is one; else task, root id and body: a task that
    publishes itself again under a fresh id is still the same killer.
    """
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    parts = (key,) if key else (task, root_id or "")
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass"))
    if not key:
        digest.update(raw)
    return digest.hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Start:
    """One delivery's start, as both the parent and the pool process know it."""

    work: str
    task_id: str
    token: str
    """New for each delivery: task ids and delivery tags repeat."""

    carried: int = 0
    """Deaths the message itself carries."""


class DeathStore(Protocol):
    """Remembers starts and deaths of suspect messages. Raises ``StoreUnavailableError``."""

    def peek(self, work: str) -> Record:
        """What is known, without changing it."""

    def open_start(self, start: Start, *, redelivered: bool, alone: bool) -> Record:
        """Write a start down; the record as it was before."""

    def close_start(self, start: Start, *, finished: bool) -> None:
        """A recorded start ended. *finished*: for good, so the work is forgotten."""

    def progress(self, start: Start) -> None:
        """A recorded start has come further than any before it: the deaths so far are forgotten, it stays open."""

    def record_death(self, start: Start) -> Record:
        """The parent saw it die; the record with this death in it."""

    def record_return(self, start: Start) -> None:
        """Its message is given back on purpose, whether it had been started or not."""
