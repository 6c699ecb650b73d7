"""``hardened schedule resume``: let paused schedules go on."""

from __future__ import annotations

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import once_more
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.cli.schedule import schedules


@click.command("resume", cls=ReportingCommand)
@schedules.names_argument
@schedules.scheduler_option
@click.pass_context
def resume_schedules(ctx: click.Context, names: tuple[str, ...], scheduler: str | None) -> None:
    """End pauses; the next slot is fired again. Also of schedules that are gone."""
    known = schedules.read(ctx, scheduler)
    store = schedules.beat_store(known.hardening)
    paused = once_more(store.paused)
    known.require(names, also=paused)
    for name in dict.fromkeys(names):
        if name not in paused:
            output.note(f"{name} was not paused.")
            continue
        once_more(lambda name=name: store.resume(name))  # type: ignore[misc]
        click.echo(text.printable(f"{name} goes on; it was paused by {paused[name].by}: {paused[name].why}"))
