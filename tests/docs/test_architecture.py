"""``docs/explanation/architecture.md`` draws the package as it is, and its import rules are the contracts'."""

from __future__ import annotations

import re

from tests.support.pages import ROOT, generated, text_of

PAGE = "explanation/architecture.md"
PACKAGE = ROOT / "celery_hardened"


def test_the_tree_is_the_package() -> None:
    """Every top-level module and folder is drawn, the pipelines file by file, and nothing that is not there."""
    drawn: set[str] = set()
    folder = ""
    for line in generated(PAGE, "tree")[2:-1]:
        match = re.match(r"^(  |    )([\w.]+/?)(?: |$)", line)
        if not match:
            continue
        name = match[2] if len(match[1]) == 2 else folder + match[2]
        folder = name if len(match[1]) == 2 and name.endswith("/") else folder
        drawn.add(name)

    there = {
        path.name + ("/" if path.is_dir() else "") for path in PACKAGE.iterdir() if not path.name.startswith("__py")
    }
    there = {name for name in there if not name.endswith("/") or any((PACKAGE / name).glob("*.py"))} - {"py.typed"}
    pipelines = {f"pipeline/{path.name}" for path in (PACKAGE / "pipeline").glob("[a-z]*.py")}
    assert drawn == there | pipelines


def test_contracts_are_those_of_the_page() -> None:
    """What the page says may not be imported is what import-linter forbids."""
    said = text_of(PAGE)
    contracts = (ROOT / "pyproject.toml").read_text()
    for word in ("policy", "letter", "retry", "errors", "marks", "settings"):
        assert f"`{word}`" in said
        assert word in contracts.partition("source_modules")[2].partition("]")[0]
    for word in ("time", "random"):
        assert f"`{word}`" in said
        assert f'"{word}"' in contracts
