"""``docs/reference/log-fields.md`` is the code's own list of fields, and of levels."""

from __future__ import annotations

import logging
import re
from typing import get_args

from celery_hardened.logs import fields
from celery_hardened.metrics.outcome import Outcome
from celery_hardened.pipeline import task_log
from tests.support.pages import text_of

PAGE = "reference/log-fields.md"


def rows() -> list[tuple[str, str]]:
    return re.findall(r"^\| `([^`]+)` \| (.+) \|$", text_of(PAGE), re.MULTILINE)


def test_fields_are_those_of_the_code() -> None:
    """Each field once, in the code's order and words."""
    argument = (f"{fields.ARGUMENT}<name>", "an argument that `log_args` of the task lists")
    expected = [*fields.OF_A_RUN.items(), argument, *fields.ELSEWHERE.items(), *fields.OF_A_LINE.items()]
    assert [row for row in rows() if not row[0].isupper()] == expected


def test_levels_are_those_of_the_code() -> None:
    """Each outcome is at one level."""
    said = {name: logging.getLevelName(level) for level, names in rows() if level.isupper() for name in _codes(names)}
    assert said == {name: task_log._LEVEL.get(name, logging.INFO) for name in get_args(Outcome)}


def _codes(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)
