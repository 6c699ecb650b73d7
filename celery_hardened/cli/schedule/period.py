"""``--from`` and ``--to``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from celery_hardened.cli.schedule import words


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return words.moment(value, now=time.time())
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither an ISO date (2026-01-31, 2026-01-31T12:00, in UTC), nor a time ago (2h, 3d), nor "
            f"one ahead (+2h).",
            ctx,
            param,
        ) from None


def period(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The two options, as ``start`` and ``end``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        first = "" if required else " Default: now."
        last = "" if required else " Default: a week after it begins."
        with_end = click.option(
            "--to", "end", callback=_moment, required=required, metavar="WHEN", help=f"Slots before this.{last}"
        )(command)
        decorated: Callable[..., Any] = click.option(
            "--from",
            "start",
            callback=_moment,
            required=required,
            metavar="WHEN",
            help=f"Slots from this on: an ISO date (UTC), a time ago (2h, 3d) or ahead (+2h).{first}",
        )(with_end)
        return decorated

    return decorate


def check(start: float, end: float) -> None:
    """Raises ``UsageError``: it ends before it begins."""
    if end <= start:
        raise click.UsageError(f"--to ({words.utc(end)}) must be later than --from ({words.utc(start)}).")
