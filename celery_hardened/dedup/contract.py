"""What every store of windows promises. One test suite holds all of them to it.

::

    free ──enter──▶ held by a task id ──leave──▶ free
                      │  ▲
                      └──┘ hold, renew, lease: how much longer

The owner is a task id, not a delivery: a retry and a redelivery are the same job, and keep the key.
Whoever is not the owner changes nothing. Each step may be repeated: that changes nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Held:
    """A key that is held now."""

    key: str
    task_id: str
    left: float
    """Seconds until it is free, if nobody says anything meanwhile."""


class WindowStore(Protocol):
    """Keeps which task holds a key. Raises ``StoreUnavailableError``. Times are seconds."""

    def enter(
        self, key: str, *, task_id: str, ttl: float, window: float | None = None, told: float | None = None
    ) -> str:
        """Take *key*, if nobody holds it; whose it is now. One command, whatever the answer.

        A task that holds it already gets it again, with a new *ttl*.

        Args:
            ttl: Seconds from now until it is free again.
            window: Seconds from now that neither ``hold`` nor ``renew`` goes beyond; at least *ttl*.
            told: A run of the task says this; when the message was published that it runs. See ``lease``.
        """

    def leave(self, key: str, *, task_id: str) -> bool:
        """Free *key*. ``False``: it is not *task_id*'s, and nothing was changed."""

    def hold(self, key: str, *, task_id: str, ttl: float | None, told: float | None = None) -> bool:
        """Keep *key* for *ttl* seconds from now, no more and no less; ``None``: to its window's end.

        Of a key that is no window, ``None`` changes nothing. ``False``: it is not *task_id*'s.

        Args:
            told: As of ``enter``.
        """

    def renew(self, key: str, *, task_id: str, lease: float) -> bool:
        """Keep *key* for at least *lease* seconds from now. ``False``: it is not *task_id*'s.

        It never shortens: a renewal may be late, and the task have taken care of the key since.
        """

    def lease(self, key: str, *, task_id: str, lease: float, published: float) -> bool:
        """Keep *key* for *lease* seconds from now, no more and no less, unless the task's run has spoken.

        For who sees that run from outside, and may be late. Its message was *published* then, in seconds since
        the epoch. ``False``: the key is not *task_id*'s, or ``enter`` or ``hold`` was ``told`` of this run, or of
        that of a later message.
        """

    def free(self, key: str) -> str | None:
        """Free *key*, whoever holds it: for operators. Whose it was; ``None``: nobody's."""

    def held(self, task: str | None = None) -> Iterator[Held]:
        """All keys that are held, or those of one task name, in no order."""
