"""``hardened dedup free``: give keys back, whoever holds them."""

from __future__ import annotations

import click

from celery_hardened.cli import output
from celery_hardened.cli.connect import hardening_of, once_more
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.pipeline.windows import windows


@click.command("free", cls=ReportingCommand)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--task", "of_task", help="Every key of this task.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output.json_option
@click.pass_context
def free_keys(ctx: click.Context, keys: tuple[str, ...], of_task: str | None, yes: bool, as_json: bool) -> None:
    """Free keys, so that the next publish is accepted.

    The tasks that held them are not touched: one that still waits or runs will run beside the next.
    For messages that are gone without anybody knowing, as after a purge of their queue.
    """
    if bool(keys) == (of_task is not None):
        raise click.UsageError("Say which keys, or --task and whose.")
    store = windows(hardening_of(ctx))
    chosen = list(dict.fromkeys(keys)) or once_more(lambda: [one.key for one in store.held(of_task)])
    output.confirm(f"Free {_amount(len(chosen))}?", letters=len(chosen), yes=yes)
    owners = {key: once_more(lambda key=key: store.free(key)) for key in chosen}  # type: ignore[misc]
    freed = {key: owner for key, owner in owners.items() if owner is not None}
    if as_json:
        output.print_json({"freed": freed, "not_held": [key for key in chosen if key not in freed]})
        return
    for key, owner in owners.items():
        output.note(f"{key} was not held." if owner is None else f"{key} was held by {owner}.")
    click.echo(f"freed {len(freed)} of {_amount(len(chosen))}")


def _amount(count: int) -> str:
    return "1 key" if count == 1 else f"{count} keys"
