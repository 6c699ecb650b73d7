"""The canary of a redrive: send a few letters, see how they fare, then decide about the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery_hardened.dead_letter.contract import DeadLetterStore
from celery_hardened.errors import DeadLetterNotFoundError


@dataclass(frozen=True, slots=True)
class Canary:
    """How many go first, and what they must show."""

    count: int
    """Letters sent first."""

    max_failed_percent: float = 0.0
    """More than this, and the redrive stops."""

    wait: float = 60.0
    """Seconds until they must have finished. What has not by then counts as failed."""

    poll: float = 1.0
    """Seconds between two looks."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.wait < 0 or self.poll <= 0 or not 0 <= self.max_failed_percent <= 100:
            raise ValueError("a canary needs count >= 1, wait >= 0, poll > 0 and a percentage from 0 to 100")


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """How they fared."""

    resolved: int
    died: int
    pending: int
    """Neither when the time was up."""

    def verdict(self, canary: Canary) -> str | None:
        """Why the redrive stops here, as a sentence; ``None`` if it goes on."""
        failed = self.died + self.pending
        sent = failed + self.resolved
        if failed * 100 <= canary.max_failed_percent * sent:
            return None
        return (
            f"Of {sent} canary letters {self.died} died again and {self.pending} had not finished after "
            f"{canary.wait:g} s; {canary.max_failed_percent:g} % may. The other letters were left alone."
        )


def watch(
    store: DeadLetterStore,
    letter_ids: Sequence[str],
    canary: Canary,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> CanaryResult:
    """Wait until each letter is resolved or has a successor, until too many died, or until the time is up."""
    deadline = clock() + canary.wait
    pending, resolved, died = list(letter_ids), 0, 0
    while True:
        still = []
        for letter_id in pending:
            match _fate(store, letter_id):
                case "resolved":
                    resolved += 1
                case "died":
                    died += 1
                case _:
                    still.append(letter_id)
        pending = still
        hopeless = died * 100 > canary.max_failed_percent * len(letter_ids)
        if not pending or hopeless or clock() >= deadline:
            return CanaryResult(resolved, died, len(pending))
        sleep(canary.poll)


def _fate(store: DeadLetterStore, letter_id: str) -> str:
    try:
        stored = store.get(letter_id)
    except DeadLetterNotFoundError:
        return "gone"
    if stored.successor is not None:
        return "died"
    return stored.state
