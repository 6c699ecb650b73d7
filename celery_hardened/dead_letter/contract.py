"""What every dead letter store promises. One test suite holds all of them to it.

A letter is *open* (``dead``, or ``parked`` while its chord waits for it) until
somebody acts on it: ``redriving`` → ``redriven`` → ``resolved`` when the task
succeeded in the end, or ``discarded``. Closed letters are kept for a while as
a record of who did what, then dropped.

Redriving is exactly once though any process may be killed between any two
steps. ``begin_redrive`` writes a fresh token into the letter, the message
carries it, and the first message to *start* wins the letter with
``accept_start``: a message sent by a redrive that was killed before it could
say so, and the one its successor sent instead, cannot both run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from celery_hardened.dead_letter.letter import DeadLetter, Reason

State = Literal["dead", "parked", "redriving", "redriven", "resolved", "discarded"]

#: States of letters that still want somebody's attention.
OPEN: tuple[State, ...] = ("dead", "parked", "redriving")

#: Entries of a letter's audit that are kept, the last ones (AUDIT_MAX in records.lua too).
AUDIT_MAX = 50

#: What a letter costs Redis beside its envelope (record and index entries); measured by
#: benchmarks/dead_letters.py: 1340 bytes on Valkey 9, 1790 on Redis 7.
INDEX_BYTES = 1600


@dataclass(frozen=True, slots=True)
class Audit:
    """Who did what to a letter, when and why."""

    at: float
    action: str
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """A letter and what has become of it."""

    letter: DeadLetter
    state: State
    stored_at: float
    """When it was first written, the store's clock."""

    audit: tuple[Audit, ...] = ()
    """What people and workers did to it, oldest first."""

    leased: bool = False
    """A redrive holds it right now: it is ``redriving`` and the lease has not lapsed."""

    successor: str | None = None
    """Id of the letter that its redrive ended in: the task died again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which letters. Every given field must match; both times are included and bound ``stored_at``.

    ``""`` asks for letters that have none: ``Query(task="")`` are those of messages without a task.
    """

    ids: tuple[str, ...] = ()
    """``()``: whatever their id."""

    task: str | None = None
    queue: str | None = None
    reason: Reason | None = None
    fingerprint: str | None = None
    error_type: str | None = None
    state: State | None = None
    """``None``: all open states."""

    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Letters, newest first, and the cursor of the next page (``None`` at the end)."""

    letters: tuple[StoredLetter, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts of the open letters, and what retention took.

    Each ``by_`` field holds the hundred largest groups, largest first.
    """

    open: int = 0
    bytes: int = 0
    """What all letters take, the closed ones too (see ``Retention.max_bytes``)."""

    oldest: float | None = None
    newest: float | None = None
    by_task: Mapping[str, int] = field(default_factory=dict)
    by_queue: Mapping[str, int] = field(default_factory=dict)
    by_reason: Mapping[str, int] = field(default_factory=dict)
    by_fingerprint: Mapping[str, int] = field(default_factory=dict)
    by_error_type: Mapping[str, int] = field(default_factory=dict)
    by_state: Mapping[str, int] = field(default_factory=dict)
    """All states, the closed ones too."""

    by_queue_and_reason: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The thousand largest."""

    dropped: Mapping[str, int] = field(default_factory=dict)
    """Open letters that retention dropped, by cause: ``age``, ``count``, ``bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much is kept.

    Over a bound, the oldest closed letters go first, then the oldest open ones
    (which are counted as dropped); the letter being written never goes.
    """

    max_age: float
    """Seconds an open letter is kept, unless the letter says otherwise."""

    max_count: int
    """Letters in all."""

    max_count_per_task: int
    """Open letters of one task, so that a broken one cannot push out every other's."""

    max_bytes: int
    """Bytes in all: compressed envelopes, and ``INDEX_BYTES`` for each letter."""

    closed_max_age: float
    """Seconds a closed letter is kept as a record."""


class DeadLetterStore(Protocol):
    """Where letters are kept.

    What happens to one letter is atomic; a method that takes several may have done
    some when it fails, and may then be called again. Every method raises
    ``StoreUnavailableError`` when the store does not answer.
    """

    def put(self, letter: DeadLetter) -> bool:
        """Keep *letter* and apply retention. ``False`` if this id was there already:
        it is then left as it is, state and audit included. If the message had been
        redriven, the letter it came from names this one as its ``successor``."""

    def put_many(self, letters: Iterable[StoredLetter]) -> int:
        """Import letters with their state, time and audit; how many were new.

        Their age counts from now. ``redriving`` ones are open again: the redrive
        that held them belongs to another store.
        """

    def get(self, letter_id: str) -> StoredLetter:
        """Raises ``DeadLetterNotFoundError``."""

    def find(self, query: Query, *, limit: int = 50, cursor: str | None = None) -> Page:
        """One page, newest first. A page may be short only at the end."""

    def ids(self, query: Query) -> Iterator[str]:
        """The ids of all that match now, oldest first, in bounded memory per step."""

    def count(self, query: Query) -> int: ...

    def stats(self) -> Stats: ...

    def begin_redrive(
        self, letter_ids: Sequence[str], *, token: str, by: str, why: str, lease: float
    ) -> list[StoredLetter]:
        """Take letters for redriving: those that are ``dead`` or ``parked``, or ``redriving``
        under a lease that has lapsed. Their state becomes ``redriving`` under *token* for
        *lease* seconds. Letters in any other state are left out of the answer.

        *token* must be new for every call. Two messages that carry the same one are
        taken for one message and its redelivery, and both would run.
        """

    def finish_redrive(self, letter_ids: Sequence[str], *, token: str) -> int:
        """Mark letters whose message was sent as ``redriven``; how many still were under *token*
        (or already accepted by it)."""

    def cancel_redrive(self, letter_ids: Sequence[str], *, token: str, why: str) -> int:
        """Give back letters whose message was *not* sent, or perhaps not: ``dead`` or ``parked``
        as before. Should the message exist after all, it may still run (``accept_start``)."""

    def accept_start(self, letter_id: str, *, token: str) -> bool:
        """May the message that carries *token* run?

        ``True`` for the first token that asks and for its redeliveries, and when the
        letter is gone; the letter becomes ``redriven``. ``False`` for every other
        token, and when the letter was discarded or resolved before any message of it
        started. A letter of which several messages may exist leaves its verdict behind
        when it is dropped, so they cannot both run then either.
        """

    def resolve(self, letter_id: str, *, by: str, why: str) -> bool:
        """The task succeeded after all. ``False`` if there was no such letter to resolve
        (unknown, resolved before, or discarded)."""

    def discard(self, letter_id: str, *, by: str, why: str) -> bool:
        """Close an open letter for good. ``False`` if it was not open any more."""

    def delete(self, letter_id: str) -> bool:
        """Forget a letter and its record entirely."""

    def parked_groups(self) -> list[tuple[str, str]]:
        """``(letter id, group id)`` of every letter whose chord waits: parked, or parked before
        its redrive began."""

    def sweep(self, *, limit: int = 1000) -> int:
        """Drop what retention no longer keeps, at most *limit* letters; how many went."""
