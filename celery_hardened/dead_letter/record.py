"""What is written down of a letter beside its envelope, and how it may change. Pure.

For stores that change a record under a lock of their own: in this process, in a database's transaction. In Redis the
scripts say the same in Lua, and one suite of tests holds all to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from celery_hardened.dead_letter.contract import AUDIT_MAX, OPEN, Audit, State
from celery_hardened.dead_letter.letter import DeadLetter

#: Verdict on a letter that is gone: the first message to ask may run, or none may.
FIRST, NONE = "", "!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One letter's state. Moments are seconds by the store's clock."""

    state: State
    parked: bool
    expires: float
    """When age drops it."""

    audit: tuple[Audit, ...] = ()
    token: str = ""
    """Of the latest redrive."""

    tokens: int = 0
    """How many there were."""

    lease: float = 0.0
    """Until when the latest redrive holds it."""

    accepted: str | None = None
    """Token of the message that may run."""

    successor: str | None = None
    """Id of the letter that its redrive ended in."""

    @property
    def open(self) -> bool:
        return self.state in OPEN

    def held(self, now: float) -> bool:
        return self.state == "redriving" and self.lease > now

    def noted(self, now: float, action: str, by: str, why: str) -> Record:
        return replace(self, audit=(*self.audit, Audit(now, action, by, why))[-AUDIT_MAX:])

    def _closed(self, state: State, now: float, keep: float) -> Record:
        return replace(self, state=state, expires=now + keep)

    # --- the steps: the record after it, or None where it may not be taken ------------------------------------

    def taken(self, token: str, *, by: str, why: str, now: float, lease: float, keep: float) -> Record | None:
        """For a redrive under *token*; the record itself if that holds it already."""
        held = self.held(now)
        if not self.open or (held and self.token != token):
            return None
        if held:
            return self
        noted = self.noted(now, "redrive", by, why)
        return replace(
            noted,
            state="redriving",
            token=token,
            tokens=self.tokens + 1,
            lease=now + lease,
            expires=max(self.expires, now + keep),
        )

    def sent(self, token: str, *, now: float, keep: float) -> Record | None:
        """Its message under *token* was sent."""
        if self.state == "redriving" and self.token == token:
            return self._closed("redriven", now, keep)
        told_before = self.state == "redriven" and self.token == token and self.accepted is None
        return self if self.accepted == token or told_before else None

    def given_back(self, token: str, *, why: str, now: float) -> Record | None:
        """Its message under *token* was not sent."""
        if self.state != "redriving" or self.token != token:
            return None
        return replace(self.noted(now, "cancel", self.audit[-1].by, why), state="parked" if self.parked else "dead")

    def started(self, token: str, *, now: float, keep: float) -> Record | None:
        """The message under *token* starts; the record itself if it had."""
        if self.accepted is not None:
            return self if self.accepted == token else None
        if self.state in ("resolved", "discarded"):
            return None
        return replace(self, accepted=token)._closed("redriven", now, keep)

    def ended(self, state: State, *, by: str, why: str, now: float, keep: float) -> Record | None:
        """Resolved, or discarded."""
        allowed: Sequence[State] = (*OPEN, "redriven") if state == "resolved" else OPEN
        if self.state not in allowed:
            return None
        return self.noted(now, state, by, why)._closed(state, now, keep)

    def died_again(self, letter_id: str, *, now: float) -> Record:
        """Its redrive ended in another letter."""
        return replace(self.noted(now, "died again", "", letter_id), successor=letter_id)

    def verdict(self) -> str | None:
        """What is to be remembered when it is dropped: messages of it may still be under way. ``None``: nothing."""
        ended = self.state in ("resolved", "discarded")
        if self.tokens >= 2 or (self.tokens == 1 and ended and self.accepted is None):
            return self.accepted or (NONE if ended else FIRST)
        return None


def first_state(letter: DeadLetter) -> State:
    return "parked" if letter.parked else "dead"


def imported_state(letter: DeadLetter, state: State) -> State:
    """The redrive that held it belongs to another store."""
    return first_state(letter) if state == "redriving" else state
