"""``docs/reference/alerts.md`` tells of every alert, as bad as it is, by commands that are real."""

from __future__ import annotations

import re
import shlex

import click
import pytest
import yaml

from celery_hardened.cli import hardened
from celery_hardened.metrics.rules.file import alerts_file
from celery_hardened.metrics.rules.terms import Terms
from tests.support.pages import DOCS, text_of

PAGE = "reference/alerts.md"

#: All there are: also those that an app with queues and schedules alone gets.
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(alerts_file(Terms(queues=("celery",), beat=True)))["groups"]
    for rule in group["rules"]
}

SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text_of(PAGE), re.MULTILINE | re.DOTALL))


def test_the_page_is_the_file() -> None:
    """Every alert has a section under its own name, in the file's order, and no section has outlived its alert."""
    assert list(SECTIONS) == list(RULES)


@pytest.mark.parametrize("name", RULES)
def test_a_section_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    """The severity is the rule's; the options are the command's, with their defaults; something can be done."""
    text = SECTIONS[name]
    first = text.strip().splitlines()[0]
    assert first.startswith(f"`{RULES[name]['labels']['severity']}`")
    options = {option: param for param in hardened.commands["alerts"].params for option in param.opts}
    for option, value in re.findall(r"`(--[\w-]+)(?: ([\d.]+))?`", first):
        said = options[option].help
        assert not value or f"Default: {value}" in said
    assert len(text.strip().splitlines()) > 2


def test_the_runbook_link_leads_there() -> None:
    """With an address of the page the annotation leads to the heading of its alert, as Markdown anchors it; without
    one there is none, and the file's head names the page."""
    text = alerts_file(Terms(queues=("celery",), beat=True, runbook="https://wiki.example/alerts"))
    told = {rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}
    for name, rule in RULES.items():
        assert "runbook_url" not in rule["annotations"]
        assert told[name]["annotations"]["runbook_url"] == f"https://wiki.example/alerts#{name.lower()}"
    assert (DOCS / PAGE).exists()
    assert f"docs/{PAGE}" in alerts_file(Terms())


def commands() -> list[str]:
    """All commands of ours that the page and the rules' descriptions quote."""
    quoted = text_of(PAGE) + "".join(rule["annotations"]["description"] for rule in RULES.values())
    return sorted(set(re.findall(r"`celery -A proj hardened ([^`]+)`", quoted)))


@pytest.mark.parametrize("command", commands())
def test_the_commands_are_real(command: str) -> None:
    """Each command that somebody is told to type exists, with the options it is told with."""
    words = shlex.split(re.sub(r"\{\{.*?\}\}", "NAME", command))
    at: click.Command = hardened
    while isinstance(at, click.Group) and words:
        at = at.commands[words.pop(0)]
    known = {option for param in at.params for option in param.opts}
    assert [word for word in words if word.startswith("--") and word not in known] == []
