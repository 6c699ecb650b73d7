"""``hardened schedule history``: what became of a schedule's latest slots."""

from __future__ import annotations

from typing import Any

import click

from celery_hardened.cli import output
from celery_hardened.cli.connect import once_more
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.cli.schedule import schedules, words

_TOLD = ("at", "outcome", "slot", "first", "count", "id", "by")


@click.command("history", cls=ReportingCommand)
@click.argument("name")
@schedules.scheduler_option
@click.option("--most", type=click.IntRange(min=1), default=20, show_default=True, help="Lines.")
@output.json_option
@click.pass_context
def show_history(ctx: click.Context, name: str, scheduler: str | None, most: int, as_json: bool) -> None:
    """Show what became of a schedule's latest slots, newest first: also of one that is gone.

    Beats keep hardened_beat_history lines of each schedule.
    """
    known = schedules.read(ctx, scheduler)
    store = schedules.beat_store(known.hardening)
    lines = once_more(lambda: store.history(name, most))
    if not lines:
        known.require([name])
    if as_json:
        for line in lines:
            output.print_json(line)
    elif lines:
        output.print_table(ctx, ("AT", "SLOT", "WHAT", "TASK ID", "MORE"), [_row(line) for line in lines])
    else:
        output.note(f"nothing has become of schedule {name!r} yet.")


def _row(line: dict[str, Any]) -> tuple[str, ...]:
    more = [f"by {line['by']}"] if line.get("by") else []
    if (count := line.get("count") or 1) != 1:
        first = f" from {words.utc(line['first'])} on" if line.get("first") else ""
        more.append(f"{count} slots{first}")
    more += [f"{key} {value}" for key, value in line.items() if key not in _TOLD and value not in (None, "", 0)]
    return (
        words.utc(line.get("at")),
        words.utc(line.get("slot")),
        str(line.get("outcome", "-")),
        str(line.get("id") or "-"),
        ", ".join(more) or "-",
    )
