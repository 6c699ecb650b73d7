"""``docs/reference/errors.md`` is ``celery_hardened/errors.py``: every class, its place and its arguments."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

import celery_hardened
from celery_hardened import errors
from tests.support.pages import codes, generated, table

PAGE = "reference/errors.md"

CLASSES = {
    name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, errors.HardenedError)
}

ROWS = {codes(row[0])[0]: row for row in table(PAGE, "Where each one appears")}


def test_the_tree_is_the_one_of_the_code() -> None:
    """The drawing of the page is the one in the module's docstring, and that is the truth."""
    drawn = generated(PAGE, "tree")[1:-1]
    assert drawn == [line.strip() for line in inspect.cleandoc(errors.__doc__ or "").splitlines() if "Error" in line]

    parents: list[str] = []
    found = {}
    for line in drawn:
        match = re.search(r"(\w+)(?: \((\w+)\))?", line)
        assert match is not None
        depth = (match.start() + 1) // 4
        parents[depth:] = [match[1]]
        found[match[1]] = {parents[depth - 1] if depth else "Exception"} | ({match[2]} if match[2] else set())
    assert found == {name: {base.__name__ for base in cls.__bases__} for name, cls in CLASSES.items()}


def test_every_error_is_explained_and_public() -> None:
    """No class without a row, no row without a class; users import all of them from the package."""
    assert set(ROWS) == set(CLASSES)
    assert set(CLASSES) <= set(celery_hardened.__all__)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_arguments_are_those_of_the_page_and_survive_pickling(name: str) -> None:
    """The page names each argument; each is an attribute; ``cls(*args)`` rebuilds the error."""
    cls: Any = CLASSES[name]
    named = codes(ROWS[name][2])
    made = cls.__init__
    taken = list(inspect.signature(made).parameters)[1:] if inspect.isfunction(made) else []
    assert named == taken

    error = cls(*(f"<{argument}>" for argument in named or ["sentence"]))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.args) == (str(error), error.args)
    for argument in named:
        assert getattr(again, argument) == f"<{argument}>"
