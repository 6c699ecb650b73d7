"""Links of the README and between pages lead somewhere; sphinx holds the pages' own (``./dev docs``)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import DOCS, ROOT

TOUR = ROOT / "example_project" / "README.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", TOUR, *sorted(DOCS.rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there, and every anchor a heading in it."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_index_and_the_readme() -> None:
    """A page that nobody links to is not read."""
    readme, index = (ROOT / "README.md").read_text(), (DOCS / "index.md").read_text()
    for page in sorted(DOCS.rglob("*.md")):
        name = str(page.relative_to(DOCS))
        if name != "index.md":
            assert f"docs/{name}" in readme
            assert name.removesuffix(".md") in index
