"""``hardened dedup list``: which keys are held, by which task, for how long."""

from __future__ import annotations

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import hardening_of, once_more
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.pipeline.windows import windows


@click.command("list", cls=ReportingCommand)
@click.option("--task", "of_task", help="Only keys of this task.")
@output.json_option
@click.pass_context
def list_keys(ctx: click.Context, of_task: str | None, as_json: bool) -> None:
    """List keys that are held now; the one that is free last comes last.

    A key is the task's name, its version and a digest of the arguments. The time is the longest it
    can last: most tasks free their key by themselves, much sooner.
    """
    store = windows(hardening_of(ctx))
    held = sorted(once_more(lambda: list(store.held(of_task))), key=lambda one: (one.left, one.key))
    if as_json:
        for one in held:
            output.print_json({"key": one.key, "task_id": one.task_id, "left": round(one.left, 3)})
    elif held:
        output.print_table(
            ctx,
            ("KEY", "FREE WITHIN", "TASK ID"),
            [(one.key, text.age(0.0, now=one.left), one.task_id) for one in held],
        )
    else:
        output.note("no keys are held.")
