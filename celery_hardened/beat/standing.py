"""What a beat that leads has in its hands. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """Proof of leading, for scripts to check."""

    owner: str
    """Token, new for each acquisition."""

    term: int
    """Rises with each acquisition."""


@dataclass(frozen=True, slots=True)
class Held:
    standing: Standing
    until: float
