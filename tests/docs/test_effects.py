"""``docs/explanation/effects.md``: nine cases that fit a screen, and words and numbers that are the code's."""

from __future__ import annotations

import re

import pytest
from celery import Celery

from celery_hardened import HardenedTask, harden, idempotent
from celery_hardened.hardening import Hardening
from celery_hardened.idempotency.decorator import options_of
from celery_hardened.pipeline.claim import lifetime_of
from tests.support.pages import ROOT, text_of

TEXT = text_of("explanation/effects.md")
CASES = ("First", "Duplicate", "Concurrent", "Lapsed", "Error", "Timeout", "Race", "Redrive", "Mismatch")


@pytest.mark.parametrize("number", range(1, 10))
def test_nine_cases_fit_a_screen(number: int) -> None:
    """Each has one drawing of at most twenty lines, none wider than a terminal."""
    section = re.split(r"^###? ", TEXT, flags=re.MULTILINE)
    (case,) = [one for one in section if one.startswith(f"{number}. {CASES[number - 1]}\n")]
    (drawing,) = re.findall(r"```text\n(.*?)```", case, re.DOTALL)
    lines = drawing.splitlines()
    assert 5 <= len(lines) <= 20
    assert max(map(len, lines)) <= 100


def test_the_fields_of_a_claim_are_those_of_the_scripts() -> None:
    """What ``HGETALL`` shows is what the page explains."""
    script = (ROOT / "celery_hardened/idempotency/claims.lua").read_text()
    written = set(re.findall(r"^-- {5}(\w+) {2,}", script, re.MULTILINE))
    table = TEXT.split("| field | holds |")[1].split("\n\n")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert told == written


def test_what_the_log_says_is_what_the_code_says() -> None:
    """Whoever greps for a sentence of this page finds it."""
    code = " ".join(path.read_text() for path in sorted((ROOT / "celery_hardened").rglob("*.py")))
    for sentence in (
        "was done before for key",
        "another run holds key",
        "to another run while this one goes on",
        "is done, but its key is another run's by now: the effect may be there twice",
        "its record could not be written",
    ):
        assert sentence in TEXT
        assert sentence in code, sentence


def test_the_lifetime_of_finished_work_is_what_the_page_adds_up() -> None:
    """With default settings, on a Redis broker with hardened delivery."""
    app = Celery("shop", broker="redis://localhost/0", set_as_current=False)
    harden(app)

    def charge(invoice_id: str) -> None:
        """Has a key."""

    task = app.task(idempotent("invoice_id")(charge), base=HardenedTask)
    app.finalize()
    options = options_of(task)
    assert options is not None
    parts = (1023, 10 * 3600, 10 * 300, 7 * 86_400, 130, 0)
    assert lifetime_of(task, options, Hardening.expect(app)) == sum(parts)
    hours = (sum(parts) - 7 * 86_400) // 3600
    assert f"7 days and {hours} hours" in TEXT
    for part in ("| 1023 s |", "| 10 times 3600 s |", "| 10 times 300 s |", "| 7 days |", "| 130 s |", "| 0 |"):
        assert part in TEXT
