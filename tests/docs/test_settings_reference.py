"""``docs/reference/settings.md`` is ``celery_hardened/settings.py``: every setting, its default and its meaning."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import pytest
from celery import Celery

from celery_hardened import ConfigurationError, HardenedTask, Hardening, harden, settings
from celery_hardened.settings import Settings
from celery_hardened.settings_rules import LEAST, MAY_BE_NONE, ONE_OF
from tests.support.pages import generated, text_of

PAGE = "reference/settings.md"

_UNITS = {86_400.0: "a day", 7 * 86_400.0: "7 days", 30 * 86_400.0: "30 days", 366 * 86_400.0: "366 days"}


def meanings() -> tuple[dict[str, str], dict[str, str]]:
    """The docstring of every field, and the heading it stands under, as the source has them."""
    source = inspect.getsource(settings)
    lines = source.splitlines()
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)).body
    said, headings = {}, {}
    for field, docstring in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(docstring, ast.Expr), f"{field.target.id} has no docstring"
        assert isinstance(docstring.value, ast.Constant)
        said[field.target.id] = re.sub(r"\s+", " ", docstring.value.value.strip()).replace("``", "`")
        above = [line for line in lines[: field.lineno] if line.strip().startswith("# --- ")]
        headings[field.target.id] = above[-1].strip(" #-")
    return said, headings


def shown(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return f"`{value!r}`"
    if value in _UNITS:
        return f"`{value:.0f}` ({_UNITS[value]})"
    if isinstance(value, int) and value % 2**20 == 0 and value:
        return f"`{value}` ({value // 2**20} MiB)"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def allowed(name: str) -> str:
    if name in LEAST:
        nullable = type(None) in get_args(get_type_hints(Settings)[name])
        return f"at least {LEAST[name]:g}" + (", or `None`" if nullable else "")
    if name in ONE_OF:
        return " or ".join(f"`{value!r}`" for value in ONE_OF[name])
    return "text" + (", or `None`" if type(None) in get_args(get_type_hints(Settings)[name]) else "")


def expected() -> list[str]:
    said, headings = meanings()
    lines, last = [], ""
    for field in fields(Settings):
        if headings[field.name] != last:
            last = headings[field.name]
            heading = last[0].upper() + last[1:]
            lines += ["", f"## {heading}", "", "| setting | default | may be | meaning |", "|---|---|---|---|"]
        lines.append(
            f"| `hardened_{field.name}` | {shown(field.default)} | {allowed(field.name)} | {said[field.name]} |"
        )
    return lines[1:]


def test_every_setting_is_there_as_the_code_has_it() -> None:
    """If this fails, put the expected lines between the two marks of the page."""
    assert generated(PAGE, "settings") == expected(), "\n" + "\n".join(expected())


def test_django_names_are_what_the_page_says() -> None:
    """Under Django's namespace setting ``hardened_x`` is ``CELERY_HARDENED_X``."""
    assert "CELERY_HARDENED_MAX_RETRIES" in text_of(PAGE)
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object({"CELERY_HARDENED_MAX_RETRIES": 4}, namespace="CELERY")
    harden(app)
    assert Hardening.expect(app).settings.max_retries == 4


def test_durations_may_be_timedeltas() -> None:
    """The page says so."""
    from datetime import timedelta

    assert "timedelta" in text_of(PAGE)
    assert Settings.from_conf({"hardened_retry_for": timedelta(hours=1)}).retry_for == 3600


@pytest.mark.parametrize("name", sorted(LEAST))
def test_none_is_refused_where_the_page_does_not_offer_it(name: str) -> None:
    """A number that is missing would be a TypeError in the middle of a task."""
    if "`None`" in allowed(name):
        assert name in MAY_BE_NONE
        return
    with pytest.raises(ConfigurationError, match=f"hardened_{name} is None"):
        Settings.from_conf({f"hardened_{name}": None})


def test_settings_are_read_once() -> None:
    """The page says when: the definition of a hardened task is the first need of them."""
    assert "What is set after that is ignored" in text_of(PAGE)
    app = Celery("shop", broker="memory://", set_as_current=False)
    harden(app)
    app.conf.hardened_max_retries = 5

    @app.task(base=HardenedTask, shared=False)  # type: ignore[misc]
    def charge() -> None: ...

    assert charge.max_retries == 5
    app.conf.hardened_max_retries = 6
    assert Hardening.expect(app).settings.max_retries == 5
