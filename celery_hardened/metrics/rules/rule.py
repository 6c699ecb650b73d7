"""One alert, and groups of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: ``critical``: wake somebody. ``warning``: look today. ``info``: look when there is time.
Severity: TypeAlias = Literal["critical", "warning", "info"]


@dataclass(frozen=True)
class Rule:
    """One alert.

    Args:
        name: What it is called, here and in ``docs/reference/alerts.md``.

        expr: PromQL. True while it has a result.

        wait: Seconds that it has to be true before it fires; scaled with the windows.

        summary: One line, with the labels and the value.

        do: What to do about it, and with which command.
    """

    name: str
    severity: Severity
    expr: str
    wait: float
    summary: str
    do: str


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated together."""

    name: str
    rules: tuple[Rule, ...]


def indented(text: str, by: int = 2) -> str:
    """*text* with all its lines moved to the right."""
    return "\n".join(" " * by + line if line else line for line in text.splitlines())
