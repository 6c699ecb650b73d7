"""What a command's exit code means, and how an error becomes one sentence and one code."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import click
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]
from kombu.exceptions import OperationalError

from celery_hardened.cli.text import printable, without_passwords
from celery_hardened.errors import (
    ConfigurationError,
    DeadLetterNotFoundError,
    HardenedError,
    StoreUnavailableError,
)


class ExitCode(IntEnum):
    """The exit codes of every ``hardened`` command."""

    OK = 0
    """All of it was done, or there was nothing to do."""

    FAILED = 1
    """Something failed or was refused; the output says what, and what was done all the same."""

    USAGE = 2
    """The command line or the app's configuration is wrong; nothing was done."""

    NOT_FOUND = 3
    """No letter has the given id, no schedule the given name; nothing was done."""

    STORE_UNAVAILABLE = 4
    """The store did not answer. What was reported as done before is done."""

    INTERRUPTED = 130
    """Ctrl-C. The output says what was done and how to go on."""


class CommandError(click.ClickException):
    """Ends a command with a sentence on standard error and an exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(printable(without_passwords(message)))
        self.exit_code = int(code)  # type: ignore[misc]


def code_of(error: HardenedError | OperationalError) -> ExitCode:
    """The exit code that tells a script what kind of error this was."""
    match error:
        case DeadLetterNotFoundError():
            return ExitCode.NOT_FOUND
        case StoreUnavailableError():
            return ExitCode.STORE_UNAVAILABLE
        case ConfigurationError():
            return ExitCode.USAGE
    return ExitCode.FAILED


class ReportingCommand(click.Command):
    """A command whose errors are a sentence and an exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HardenedError as error:
            raise CommandError(str(error), code_of(error)) from error
        except OperationalError as error:
            raise CommandError(f"the broker did not answer: {error}", code_of(error)) from error
        except KeyboardInterrupt:
            raise CommandError("stopped before anything was changed.", ExitCode.INTERRUPTED) from None


class ReportingGroup(DYMGroup):  # type: ignore[misc]
    """A group of such commands; a misspelt one is answered with the right name."""

    command_class = ReportingCommand
    group_class = type
