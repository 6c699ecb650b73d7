"""What every store of claims promises. One test suite holds all of them to it.

::

    absent ──claim──▶ claimed ──finish──▶ done        a later claim gets the result
                        │  ▲
                release │  │ claim
                        ▼  │
                      released                        a failure; the fence is kept

A claim belongs to an *owner*, new for each start: task ids repeat on redelivery. Its lease is
renewed while it runs; once it has lapsed, anybody may claim the key. Whoever is not the owner any
more changes nothing. Each step may be repeated, and then answers the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Won:
    """The key is the asker's."""

    fence: int | None
    """Larger than that of every claim of this key before it; ``None`` where a transaction fences."""

    since: int | None = None
    """The fence of the first claim since nobody knew the key. Another one than before: what was known of this work is
    forgotten, so it is not that work going on. ``None`` where a transaction fences."""


@dataclass(frozen=True, slots=True)
class Done:
    """The work was done before."""

    result: bytes | None
    """As ``finish`` got it; ``None``: it was not kept."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another run holds the key."""

    left: float
    """Seconds until its lease ends, unless it is renewed."""

    same: bool
    """Was it started from the asker's own task id: a redelivery, whose first run may still live?"""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key is held by, or done for, another message with other arguments.

    Not said after a failure or a lapsed lease, when nothing is known to be done; and a message is never compared
    with itself: its redelivery may reach code with one default more, its retry has arguments of its own.
    """


Answer: TypeAlias = Won | Done | Busy | Mismatch


class ClaimStore(Protocol):
    """Keeps who works on a key, and what came of it. Raises ``StoreUnavailableError``. Times are seconds."""

    def claim(self, key: str, *, owner: str, task_id: str, fingerprint: str, lease: float, lifetime: float) -> Answer:
        """Take *key*, if nobody works on it and the work is not done.

        Args:
            fingerprint: Of all arguments; ``""`` is not compared.
            lifetime: How long the record is kept, from each step on.
        """

    def renew(self, key: str, *, owner: str, lease: float) -> bool:
        """Extend the lease. ``False``: the key is not *owner*'s any more."""

    def finish(self, key: str, *, owner: str, result: bytes | None, lifetime: float) -> bool:
        """The work is done. ``False``: the key is not *owner*'s any more, and nothing was changed."""

    def release(self, key: str, *, owner: str) -> bool:
        """The work failed; the next claim wins at once. ``False``: the key is not *owner*'s any more."""
