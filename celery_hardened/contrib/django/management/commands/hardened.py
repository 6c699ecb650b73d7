"""``manage.py hardened …``: ``celery -A proj hardened …``, for the app of this project."""

from __future__ import annotations

import contextlib
import io
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from typing import Any

import click
from celery import Celery
from celery.app.utils import find_app
from celery.bin.base import CLIContext
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import connections

from celery_hardened.cli import exit_codes, hardened
from celery_hardened.contrib.django.checks.project import project_app

#: What Django itself adds to each command. It has obeyed the first two by now; they may stand anywhere.
_DJANGO = ("--settings", "--pythonpath")


class _Plain(io.TextIOBase):
    """What is written comes to a command's own stream as it is: no line end is added, and no colour."""

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(text)  # click asks so whether a stream takes bytes
        self._stream.write(text, str, "")
        return len(text)


class Command(BaseCommand):  # type: ignore[misc]
    """The same commands, options, output and exit codes."""

    help = "Dead letters, schedules, kill switches and deduplication keys: as `celery -A proj hardened`."
    requires_system_checks: Sequence[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """For ``call_command``; a command line is read by click."""
        parser.add_argument("--app", "-A", help="Another app than the project's own, as for `celery -A`.")
        parser.add_argument("arguments", nargs=REMAINDER)

    def run_from_argv(self, argv: list[str]) -> None:
        """From a shell."""
        try:
            _from_shell.main(_without_djangos(argv[2:]), prog_name=f"{argv[0]} {argv[1]}".strip())
        finally:
            with contextlib.suppress(Exception):
                connections.close_all()

    def handle(self, *_: str, app: str | None = None, arguments: Sequence[str] = (), **options: Any) -> None:
        """By ``call_command("hardened", "dlq", "list")``.

        Raises:
            CommandError: Its ``returncode`` is the exit code.
        """
        try:
            with contextlib.redirect_stdout(_Plain(self.stdout)), contextlib.redirect_stderr(_Plain(self.stderr)):
                found = _context(app, no_color=bool(options.get("no_color")))
                code = hardened.main(list(arguments), "hardened", standalone_mode=False, obj=found)
        except click.ClickException as problem:
            raise CommandError(problem.format_message(), returncode=problem.exit_code) from problem
        except click.Abort:
            raise CommandError("aborted", returncode=int(exit_codes.ExitCode.FAILED)) from None
        if code:
            raise CommandError(f"exit code {code}", returncode=int(code))


@click.command(
    "hardened",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-A", "--app")
@click.option("--no-color", is_flag=True)
@click.option("--force-color", is_flag=True)
@click.option("--traceback", is_flag=True)
@click.option("--skip-checks", is_flag=True)
@click.option("-v", "--verbosity")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _from_shell(ctx: click.Context, /, app: str | None, no_color: bool, arguments: tuple[str, ...], **_: Any) -> None:
    """Take what stands before the command's name, and hand over to the commands."""
    wants_help = not arguments or "--help" in arguments
    found = CLIContext(app=None, no_color=no_color, workdir=None) if wants_help else _context(app, no_color=no_color)
    sys.exit(hardened.main(list(arguments), ctx.info_name, obj=found))


def _context(app: str | None, *, no_color: bool) -> CLIContext:
    return CLIContext(app=_app(app), no_color=no_color, workdir=None)


def _app(named: str | None) -> Celery:
    if named is not None:
        try:
            return find_app(named)
        except (ImportError, AttributeError, TypeError, ValueError) as problem:
            raise exit_codes.CommandError(
                f"there is no Celery app {named!r}: {problem}", exit_codes.ExitCode.USAGE
            ) from problem
    found = project_app()
    if found is None:
        raise exit_codes.CommandError(
            "there is no Celery app in this process. Import it in the __init__.py of the package that has your "
            "settings (`from .celery import app as celery_app`), or name one: manage.py hardened --app <module> …",
            exit_codes.ExitCode.USAGE,
        )
    return found


def _without_djangos(words: Sequence[str]) -> list[str]:
    """*words* without ``--settings X`` and ``--pythonpath X``, which Django has obeyed before it came here."""
    left: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*left, word, *rest]
        name, has_value, _ = word.partition("=")
        if name not in _DJANGO:
            left.append(word)
        elif not has_value:
            next(rest, None)
    return left
