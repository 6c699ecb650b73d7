"""From a command line to the hardened app, and the first word with its Redis."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable
from typing import TypeVar

import click

from celery_hardened.cli.exit_codes import CommandError, ExitCode
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening

T = TypeVar("T")

#: How long the one repetition waits: a restarted server needs a moment to load its data.
_PAUSE = 0.5


def hardening_of(ctx: click.Context) -> Hardening:
    """What ``harden(app)`` made of the app named with ``-A``.

    Raises:
        CommandError: The app was never hardened; exit code 2.
    """
    app = ctx.obj.app
    hardening = Hardening.of(app)
    if hardening is None:
        raise CommandError(
            f"the app {app.main or 'default'!r} is not hardened. Call celery_hardened.harden(app) where it is "
            f"created, or name the right app: celery -A <module> hardened …",
            ExitCode.USAGE,
        )
    return hardening


def once_more(step: Callable[[], T]) -> T:
    """Take the first step towards the store; if it does not answer, once more.

    The first connection after a server was restarted may fail where the second
    works. Only for steps that may be repeated.

    Raises:
        StoreUnavailableError: It did not answer the second time either.
    """
    try:
        return step()
    except StoreUnavailableError:
        time.sleep(_PAUSE)
        return step()


def whoami() -> str:
    """``user@host``, for the audit of a letter."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may run under a uid without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
