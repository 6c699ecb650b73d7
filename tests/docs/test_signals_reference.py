"""``docs/reference/signals.md`` is ``celery_hardened/signals.py``: every signal, and what it tells."""

from __future__ import annotations

import ast
from pathlib import Path

from celery import signals as celery_signals
from celery.utils.dispatch import Signal

import celery_hardened
from celery_hardened import signals
from tests.support.pages import codes, table

PAGE = "reference/signals.md"

SIGNALS = {name: value for name, value in vars(signals).items() if isinstance(value, Signal)}

ROWS = {codes(row[0])[0]: row for row in table(PAGE, "Ours")}


def test_each_signal_has_a_row() -> None:
    """In the order of the module, with the arguments in the order in which it names them."""
    assert list(ROWS) == list(SIGNALS)
    assert {name: set(codes(row[1])) for name, row in ROWS.items()} == {
        name: set(signal.providing_args) for name, signal in SIGNALS.items()
    }
    assert all(signal.name == name for name, signal in SIGNALS.items())


def test_each_signal_is_sent_with_just_these_arguments() -> None:
    """In one place of the package, by name; a place that tells less, or under another name, is found here."""
    told: dict[str, list[set[str]]] = {}
    for path in Path(celery_hardened.__path__[0]).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            named = getattr(call.func, "id", None) or getattr(call.func, "attr", None)
            first = call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else ""
            if named == "tell" and first in SIGNALS:
                told.setdefault(first, []).append(_keywords(call, tree))
    assert {name: [set(SIGNALS[name].providing_args)] for name in SIGNALS} == told


def _keywords(call: ast.Call, tree: ast.Module) -> set[str]:
    """Names of what *call* tells; of ``**what`` the keys of the dictionary of that name."""
    found = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    spread = [keyword.value.id for keyword in call.keywords if isinstance(keyword.value, ast.Name) and not keyword.arg]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if [getattr(target, "id", None) for target in node.targets] == spread:
            found |= {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    return found


def test_celerys_own_are_there() -> None:
    for row in table(PAGE, "Celery's own"):
        assert isinstance(getattr(celery_signals, codes(row[1])[0]), Signal)
