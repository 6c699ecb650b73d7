"""``docs/reference/cli.md`` tells what the code does: every command, option, exit code and JSON field."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from celery_hardened.cli import hardened
from celery_hardened.cli.archive import dump_line
from celery_hardened.cli.exit_codes import ExitCode
from celery_hardened.cli.record import details, summary
from celery_hardened.cli.selection import selection
from celery_hardened.dead_letter.contract import StoredLetter
from tests.support.cli import answers, call, make_app, make_letter, store_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


COMMANDS = dict(commands(hardened))


FILTERS = click.command()(selection(lambda: None)).params


def rows(params: Iterable[click.Parameter]) -> list[str]:
    """The lines of a table of options."""
    lines = []
    for param in params:
        if not isinstance(param, click.Option):
            continue
        metavar = f" {param.metavar}" if param.metavar else ""
        said = param.help or ""
        if isinstance(param.type, click.Choice):
            said += " One of " + ", ".join(f"`{choice}`" for choice in param.type.choices) + "."
        if param.required:
            said += " Required."
        if param.show_default:
            default = param.show_default if isinstance(param.show_default, str) else param.default
            said += f" Default: {default:g}." if isinstance(default, float) else f" Default: {default}."
        lines.append(f"| `{param.opts[0]}{metavar}` | {said} |")
    return lines


def section(title: str) -> str:
    """The text below the heading *title*, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{PAGE.name} has no section {title!r}"
    return found[1]


def described_options(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `--")]


def named_fields(text: str) -> set[str]:
    """What stands in backquotes at the beginning of a table's rows or a list's items."""
    return {
        name for line in text.splitlines() if line.startswith(("| `", "- `"))
        for name in re.findall(r"`(\w+)`", line.split(" | ")[0].split(": ")[0])
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_is_described(path: str) -> None:
    """Each command has a section with its usage and one row an option: no more, no fewer, the help's own words."""
    text = section(f"`{path}`")
    command = COMMANDS[path]
    filters = {param.name for param in FILTERS} & {param.name for param in command.params}
    assert len(filters) in (0, len(FILTERS))
    assert ("[filters](#filters)" in text) == bool(filters)
    assert described_options(text) == rows(param for param in command.params if param.name not in filters)
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    usage = " ".join([path, *(param.make_metavar(click.Context(command)) for param in arguments)])
    assert f"celery -A proj hardened {usage}\n" in text


def test_the_filters_are_described() -> None:
    """They are the same everywhere, so they have one table."""
    assert described_options(section("Filters")) == rows(FILTERS)


def test_no_command_is_described_that_does_not_exist() -> None:
    """The page does not outlive a command."""
    assert re.findall(r"^### `(.*)`$", PAGE.read_text(), re.MULTILINE) == list(COMMANDS)


def test_exit_codes_are_described() -> None:
    """The table of exit codes is the enumeration."""
    assert re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE) == [str(int(code)) for code in ExitCode]


def test_json_shapes_are_described() -> None:
    """Every field of every JSON answer is named on the page, and no other."""
    stored = StoredLetter(letter=make_letter(), state="dead", stored_at=1.0)
    of_list = set(summary(stored, show_args=True))
    assert named_fields(section("A letter in JSON")) == of_list
    assert named_fields(section("More in `dlq show`")) == set(details(stored, show_args=True)) - of_list
    assert named_fields(section("Exported lines")) == set(json.loads(dump_line(stored)))

    app = make_app()
    store_of(app).put(make_letter())
    for title, command in {
        "Stats in JSON": ["dlq", "stats"],
        "Redrive in JSON": ["dlq", "redrive", "--all", "--dry-run"],
        "Discard in JSON": ["dlq", "discard", "--all", "--dry-run", "--why", "x"],
        "Switches in JSON": ["switch", "list"],
    }.items():
        assert named_fields(section(title)) == set(answers(call(app, *command, "--json"))[0]), title


HOW_TO = PAGE.parents[1] / "how-to" / "inspect-and-redrive.md"


def test_the_commands_of_the_how_to_are_real() -> None:
    """Every command on the how-to page is accepted by the command line."""
    lines = re.findall(r"^\$ celery -A proj hardened (.*)$", HOW_TO.read_text(), re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        group, name, *args = shlex.split(line)
        COMMANDS[f"{group} {name}"].make_context(name, args)


def test_the_python_of_the_how_to_runs() -> None:
    """The block on the how-to page is run as it stands."""
    (block,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    app = make_app()
    store_of(app).put(make_letter())
    exec(block, {"app": app})
    assert store_of(app).get(make_letter().id).state == "redriven"
