"""``hardened schedule skip`` and ``unskip``: pass over the coming slot of schedules, or fire it after all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import whoami
from celery_hardened.cli.exit_codes import ExitCode, ReportingCommand
from celery_hardened.cli.schedule import schedules, words
from celery_hardened.cli.schedule.state import kept

if TYPE_CHECKING:
    from celery_hardened.beat.skip_store import SkipStore


@click.command("skip", cls=ReportingCommand)
@schedules.names_argument
@schedules.scheduler_option
@click.option("--why", required=True, help="The reason, for the history.")
@click.option("--by", default=whoami, show_default="user@host", help="Who, for the history.")
@click.pass_context
def skip_slots(ctx: click.Context, names: tuple[str, ...], scheduler: str | None, why: str, by: str) -> None:
    """Do not fire the coming slot of these schedules, and no other than that.

    It holds whoever leads. What was missed before is made up for all the same; what runs already runs on.
    """
    from celery_hardened.beat.skip import NotSkippedError

    known = schedules.read(ctx, scheduler)
    known.require(names)
    store = _store(known)
    well = True
    for name in dict.fromkeys(names):
        schedule = known.usable(name)
        try:
            with schedules.asking(name):
                # Not tried again if the answer is lost: it would skip the slot behind the one that was meant.
                skip = store.skip_next(schedule, by=by, why=why, now=time.time())
        except NotSkippedError as refused:
            output.note(str(refused))
            well = False
            continue
        zone = words.zone_of(schedule.when, known.hardening.app.timezone)
        click.echo(text.printable(f"{name}: slot {words.utc(skip.slot)} ({words.local(skip.slot, zone)}) is skipped"))
    if not well:
        ctx.exit(ExitCode.FAILED)


@click.command("unskip", cls=ReportingCommand)
@schedules.names_argument
@schedules.scheduler_option
@click.pass_context
def unskip_slots(ctx: click.Context, names: tuple[str, ...], scheduler: str | None) -> None:
    """Fire slots after all that were to be skipped, if no beat has passed over them yet."""
    known = schedules.read(ctx, scheduler)
    redis, store = kept(known), _store(known)
    known.require(names, also=redis.skips)
    well = True
    for name in dict.fromkeys(names):
        skip = redis.skips.get(name)
        if skip is None:
            output.note(f"no slot of {name} is skipped.")
        elif store.unskip(name, skip.slot):  # once: asked again, it would be told to be over
            said = f"{name}: slot {words.utc(skip.slot)} is fired; it was skipped by {skip.by}: {skip.why}"
            click.echo(text.printable(said))
        else:
            output.note(f"slot {words.utc(skip.slot)} of {name} is over.")
            well = False
    if not well:
        ctx.exit(ExitCode.FAILED)


def _store(known: schedules.Known) -> SkipStore:
    from celery_hardened.beat.names import Keys
    from celery_hardened.beat.skip_store import SkipStore

    return SkipStore(known.hardening.redis, Keys(known.hardening.prefix))
