"""``docs/reference/schedules.md``, and what other pages say of beats, is what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

import pytest

from celery_hardened.beat import entries
from celery_hardened.beat.names import Keys
from celery_hardened.beat.policy import MissedRun, Overlap, Policy, Reason
from celery_hardened.cli.schedule.adopt import adopt_schedules
from celery_hardened.settings import Settings
from tests.support.pages import codes, table, text_of

PAGE = "reference/schedules.md"
HOW_TO = "how-to/move-to-hardened-beat.md"


def keys_of(page: str, mark: str) -> list[str]:
    """The keys of the table whose head is followed by *mark*."""
    text = text_of(page).partition(mark)[2].partition("\n\n|")[2]
    return [key for line in text.partition("\n\n")[0].splitlines()[2:] for key in codes(line.split(" | ")[0])]


def test_every_key_of_an_entry_is_there() -> None:
    """Celery's and ours, no more and no fewer; those that have no effect are said to have none."""
    celerys = keys_of(PAGE, "Celery's own:")
    (idle,) = [line for line in text_of(PAGE).splitlines() if "are let pass" in line]
    assert sorted(celerys + codes(idle)) == sorted(entries._CELERYS)
    assert keys_of(PAGE, "\nOurs.") == list(entries._OURS)
    ours = text_of(PAGE).partition("\nOurs.")[2].partition("\n## ")[0]
    for value in (*get_args(MissedRun), *get_args(Overlap)):
        assert f'`"{value}"`' in ours


def test_defaults_are_those_of_the_settings() -> None:
    """In the table, and in the how-to."""
    settings = Settings()
    rows = {codes(row[0])[0]: row[1] for row in table_of_ours()}
    assert rows["missed_run"] == f'`"{settings.beat_missed_run}"`'
    assert rows["catchup_window"] == "a day"
    assert settings.beat_catchup_window == 86_400
    assert rows["max_catchup"] == str(settings.beat_max_catchup)
    assert rows["grace"] == f"{settings.beat_grace:g} s"
    assert rows["overlap"] == f'`"{settings.beat_overlap}"`'
    how_to = text_of("how-to/schedule-tasks.md")
    assert f"`grace` ({settings.beat_grace:g} s)" in how_to
    assert f"`max_catchup` ({settings.beat_max_catchup})" in how_to
    assert f"`hardened_beat_ttl` ({settings.beat_ttl:g} s)" in how_to
    for name in (field.name for field in fields(Policy)):
        assert (name == "jitter") is not hasattr(settings, f"beat_{name}")


def table_of_ours() -> list[list[str]]:
    text = text_of(PAGE).partition("\nOurs.")[2].partition("\n\n|")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()[2:]]


@pytest.mark.parametrize(("page", "under"), [(PAGE, "Slots not fired"), ("reference/cli.md", "Schedules in JSON")])
def test_reasons_are_all_there(page: str, under: str) -> None:
    """Each reason for which a slot is not fired has its row."""
    text = text_of(page).partition(f"# {under}\n")[2].partition("\n#")[0]
    for reason in get_args(Reason):
        assert f"`{reason}`" in text
    if page == PAGE:
        assert [codes(row[0])[0] for row in table(PAGE, under)] == list(get_args(Reason))


def test_redis_keys_of_beats_are_all_there() -> None:
    """Each key that has a name in the code is a row of its page, and no other, but the mark of a run by hand."""
    keys = Keys("<prefix>")
    named = {value.fget(keys) for value in vars(Keys).values() if isinstance(value, property)}
    named |= {keys.history("<schedule>"), "<prefix>:{beat}:triggered:<task id>"}
    assert {codes(row[0])[0] for row in table("reference/redis-keys.md", "Beats")} == named


def test_steps_of_moving_over_are_commands() -> None:
    """Every ``adopt`` of the how-to is understood, with each of its sources."""
    said = re.findall(r"^ *\$ celery -A proj hardened schedule adopt (.*)$", text_of(HOW_TO), re.MULTILINE)
    assert len(said) >= 5
    for words in said:
        adopt_schedules.make_context("adopt", words.split())
    assert {word for words in said for word in words.split() if word.startswith("--")} >= {
        "--shelve", "--redbeat", "--since", "--dry-run"
    }  # fmt: skip
