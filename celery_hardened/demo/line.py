"""One line of the summary: a promise, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """What was promised, in the numbers that were seen, and whether they are the right ones."""

    subject: str
    """``killer``; empty if it is that of the line before."""

    seen: str
    true: bool
