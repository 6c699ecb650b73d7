"""The documentation as tests read it: pages, their tables, their examples."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    """The text of a page, named from ``docs/``: ``reference/settings.md``."""
    return (DOCS / page).read_text(encoding="utf-8")


def generated(page: str, name: str) -> list[str]:
    """
    The lines between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``, which a test compares with the code.

    Raises:
        AssertionError: The page has no such part.
    """
    found = re.search(rf"<!-- {name}: begin -->\n\n(.*?)\n\n<!-- {name}: end -->", text_of(page), re.DOTALL)
    assert found is not None, f"docs/{page} has no part {name!r} between its two marks"
    return found[1].splitlines()


def table(page: str, under: str) -> list[list[str]]:
    """
    The rows of the first table under the heading *under*, without its head: the text of each cell.

    Raises:
        AssertionError: There is no such heading or no table.
    """
    _, found, rest = text_of(page).partition(f"# {under}\n")
    assert found, f"docs/{page} has no heading {under!r}"
    lines = [line for line in rest.split("\n#")[0].splitlines() if line.startswith("|")]
    assert len(lines) > 2, f"docs/{page} has no table under {under!r}"
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def codes(cell: str) -> list[str]:
    """What stands in backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)
