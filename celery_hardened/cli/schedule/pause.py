"""``hardened schedule pause``: hold schedules up."""

from __future__ import annotations

import time

import click

from celery_hardened.cli import text
from celery_hardened.cli.connect import once_more, whoami
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.cli.schedule import schedules, words


def _until(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    now = time.time()
    try:
        until = words.ahead(value, now=now)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither a duration (30m, 2h) nor an ISO date (2026-01-31T12:00, in UTC).", ctx, param
        ) from None
    if until <= now:
        raise click.BadParameter(f"{words.utc(until)} is over already.", ctx, param)
    return until


@click.command("pause", cls=ReportingCommand)
@schedules.names_argument
@schedules.scheduler_option
@click.option("--why", required=True, help="The reason, for whoever finds it paused.")
@click.option(
    "--until",
    "ends",
    callback=_until,
    metavar="WHEN",
    help="Resume by itself: after a duration (30m, 2h), or at an ISO date.",
)
@click.option("--by", default=whoami, show_default="user@host", help="Who, for whoever finds it paused.")
@click.option("--unknown-too", is_flag=True, help="Also names that no schedule has, or not yet.")
@click.pass_context
def pause_schedules(
    ctx: click.Context,
    names: tuple[str, ...],
    scheduler: str | None,
    why: str,
    ends: float | None,
    by: str,
    unknown_too: bool,
) -> None:
    """Fire no slot of these schedules until they are resumed; beats follow within two seconds.

    What falls due meanwhile is not made up for. What runs already runs on.
    """
    known = schedules.read(ctx, scheduler)
    if not unknown_too:
        known.require(names)
    store = schedules.beat_store(known.hardening)
    for name in dict.fromkeys(names):
        once_more(lambda name=name: store.pause(name, by=by, why=why, until=ends))  # type: ignore[misc]
        click.echo(text.printable(f"{name} is paused {f'until {words.utc(ends)}' if ends else 'until it is resumed'}"))
