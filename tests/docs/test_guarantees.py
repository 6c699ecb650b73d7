"""Each proof that ``docs/explanation/guarantees.md`` names is a test that exists, and its numbers are true."""

from __future__ import annotations

import re

from celery_hardened.settings import Settings
from tests.support.pages import ROOT, text_of

TEXT = text_of("explanation/guarantees.md")


def test_proofs_exist() -> None:
    """Every ``tests/...`` the page names is a file, and every ``::name`` a test in it."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 10
    for path, test in named:
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


def test_every_promise_of_the_design_is_there() -> None:
    """G1 to G10, in order; each says what is promised, or that it is not yet."""
    sections = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
    assert [section.split(":")[0] for section in sections] == [f"G{n}" for n in range(1, 11)]
    for section in sections:
        promised = "**Promised" in section or "**On RabbitMQ**" in section
        assert promised or "**Not promised yet.**" in section
        assert not promised or ("**Proof.**" in section and "ot promised" in section), section[:40]


def test_numbers_are_those_of_the_code() -> None:
    """Deaths, and the kinds of bad message that are sent."""
    from tests.integration.test_bad_input import CASES

    assert f"`hardened_max_worker_deaths` deaths ({Settings().max_worker_deaths})" in TEXT
    assert f"sends {len(CASES)} kinds" in TEXT
