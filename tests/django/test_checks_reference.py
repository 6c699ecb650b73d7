"""``docs/reference/checks.md`` is the checks: every id, under its command; hints name pages that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from celery_hardened.contrib.django import checks
from tests.support.pages import DOCS, codes, table

PAGE = "reference/checks.md"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in Path(checks.__path__[0]).glob("*.py")}


def rows(heading: str) -> set[str]:
    return {codes(row[0])[0] for row in table(PAGE, heading)}


def ids(text: str) -> set[str]:
    return set(re.findall(r"celery_hardened\.([EWI]\d{3})", text))


def test_each_id_has_a_row() -> None:
    """And stands where its command does."""
    assert rows("With --deploy --database") == ids(SOURCES["stored"])
    assert rows("With --deploy") == ids(SOURCES["deploy"]) | {"W017"}
    elsewhere = [text for name, text in SOURCES.items() if name not in ("deploy", "stored")]
    assert rows("Always") == set().union(*map(ids, elsewhere)) - {"W017"}


def test_hints_name_pages() -> None:
    """Each by its title, as it stands over the page."""
    titles = {path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in DOCS.rglob("*.md")}
    named = set()
    for text in SOURCES.values():
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            if getattr(call.func, "id", None) == "page":
                named.add(ast.literal_eval(call.args[0]))
    assert len(named) > 8
    assert named <= titles
