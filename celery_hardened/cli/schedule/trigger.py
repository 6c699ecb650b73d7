"""``hardened schedule trigger``: fire schedules now, by hand."""

from __future__ import annotations

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import whoami
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.cli.schedule import schedules


@click.command("trigger", cls=ReportingCommand)
@schedules.names_argument
@schedules.scheduler_option
@click.option("--force", is_flag=True, help="Also while it is paused, and beside a run that is not over.")
@click.option("--by", default=whoami, show_default="user@host", help="Who, for the history.")
@output.json_option
@click.pass_context
def trigger_schedules(
    ctx: click.Context, names: tuple[str, ...], scheduler: str | None, force: bool, by: str, as_json: bool
) -> None:
    """Fire schedules once, now, each under a new task id. Their own slots are fired all the same.

    No beat need run.
    """
    from celery_hardened.pipeline.beat_by_hand import ByHand

    known = schedules.read(ctx, scheduler)
    known.require(names)
    hand = ByHand(known.hardening, by=by)

    def fire(name: str) -> None:
        task_id = hand.trigger(known.usable(name), force=force)
        if as_json:
            output.print_json({"name": name, "task_id": task_id})
        else:
            click.echo(text.printable(f"{name}: fired as {task_id}"))

    try:
        well = schedules.each(names, fire)
    finally:
        hand.close()
    if not well:
        raise CommandError("not all of them were fired.", ExitCode.FAILED)
