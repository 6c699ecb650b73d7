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


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which letters. Every given field must match; times bound ``stored_at``."""

    ids: tuple[str, ...] = ()
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
    """Counts of the open letters, and what retention took."""

    open: int = 0
    bytes: int = 0
    oldest: float | None = None
    newest: float | None = None
    by_task: Mapping[str, int] = field(default_factory=dict)
    by_queue: Mapping[str, int] = field(default_factory=dict)
    by_reason: Mapping[str, int] = field(default_factory=dict)
    by_fingerprint: Mapping[str, int] = field(default_factory=dict)
    by_state: Mapping[str, int] = field(default_factory=dict)
    """All states, the closed ones too."""

    dropped: Mapping[str, int] = field(default_factory=dict)
    """Open letters that retention dropped, by cause: ``age``, ``count``, ``bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much is kept. The oldest letters go first."""

    max_age: float
    """Seconds an open letter is kept, unless the letter says otherwise."""

    max_count: int
    max_count_per_task: int
    """So that one broken task cannot push out every other one's letters."""

    max_bytes: int
    closed_max_age: float
    """Seconds a closed letter is kept as a record."""


class DeadLetterStore(Protocol):
    """Where letters are kept. Every method is atomic; each raises
    ``StoreUnavailableError`` when the store does not answer, having changed nothing."""

    def put(self, letter: DeadLetter) -> bool:
        """Keep *letter* and apply retention. ``False`` if this id was there already:
        it is then left as it is, state and audit included."""

    def put_many(self, letters: Iterable[StoredLetter]) -> int:
        """Import letters with their state and audit; how many were new."""

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
        *lease* seconds. Letters in any other state are left out of the answer."""

    def finish_redrive(self, letter_ids: Sequence[str], *, token: str) -> int:
        """Mark letters whose message was sent as ``redriven``; how many still were under *token*
        (or already accepted by it)."""

    def cancel_redrive(self, letter_ids: Sequence[str], *, token: str, why: str) -> int:
        """Give letters whose message was *not* sent back: ``dead`` or ``parked`` as before."""

    def accept_start(self, letter_id: str, *, token: str) -> bool:
        """May the message that carries *token* run? ``True`` for the first token that asks and for
        its redeliveries, and when the letter is gone; ``False`` for every other token.
        The letter becomes ``redriven``."""

    def resolve(self, letter_id: str, *, by: str, why: str) -> bool:
        """The task succeeded after all. ``False`` if there was no such letter to resolve."""

    def discard(self, letter_id: str, *, by: str, why: str) -> bool:
        """Close an open letter for good. ``False`` if it was not open any more."""

    def delete(self, letter_id: str) -> bool:
        """Forget a letter and its record entirely."""

    def parked_groups(self) -> list[tuple[str, str]]:
        """``(letter id, group id)`` of every parked letter."""

    def sweep(self, *, limit: int = 1000) -> int:
        """Drop what retention no longer keeps, at most *limit* letters; how many went."""
