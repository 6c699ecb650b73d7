"""``hardened dlq discard``: close letters for good."""

from __future__ import annotations

from collections.abc import Sequence

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import hardening_of, once_more, whoami
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.cli.interrupt import interrupt_held_back
from celery_hardened.cli.selection import chosen, described, require_selection, selection
from celery_hardened.dead_letter.contract import Query
from celery_hardened.errors import DeadLetterError, StoreUnavailableError
from celery_hardened.hardening import Hardening


@click.command("discard", cls=ReportingCommand)
@selection
@click.option("--all", "everything", is_flag=True, help="Every open letter.")
@click.option("--why", required=True, help="The reason, for the audit.")
@click.option("--by", default=whoami, show_default="user@host", help="Who, for the audit.")
@click.option("--dry-run", is_flag=True, help="Say how many it would be; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output.json_option
@click.pass_context
def discard_letters(
    ctx: click.Context,
    query: Query,
    everything: bool,
    why: str,
    by: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Close letters for good; a parked one fails its chord, and its errbacks run."""
    require_selection(query, everything=everything)
    hardening = hardening_of(ctx)
    selected = once_more(lambda: chosen(hardening.dead_letters, query))
    ids, problems = selected.ids, selected.skipped
    if dry_run:
        closed = 0
    else:
        output.confirm(f"Discard {text.amount(len(ids))} ({described(query)}) for good?", letters=len(ids), yes=yes)
        closed, failed = _discard(hardening, ids, by=by, why=why)
        problems = problems + failed

    if as_json:
        output.print_json({"selected": len(ids), "discarded": closed, "problems": problems, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would discard {text.amount(len(ids))} ({described(query)})")
    else:
        click.echo(f"discarded {closed} of {text.amount(len(ids))}")
    if problems:
        raise CommandError("\n".join(problems))
    if not dry_run and closed < len(ids):
        raise CommandError(f"{text.amount(len(ids) - closed)} had been closed by somebody else meanwhile.")


def _discard(hardening: Hardening, ids: Sequence[str], *, by: str, why: str) -> tuple[int, list[str]]:
    """Close letters one by one, so that trouble with one is not trouble for the next."""
    closed, problems = 0, []
    # A letter is closed and then its chord failed: Ctrl-C must not come between.
    with interrupt_held_back() as stopped, output.progress("discarding", len(ids)) as more:
        for letter_id in ids:
            done = f"{closed} of {text.amount(len(ids))} were discarded; the same command goes on with the rest."
            if stopped():
                raise CommandError(f"stopped: {done}", ExitCode.INTERRUPTED)
            try:
                closed += hardening.discard([letter_id], by=by, why=why)
            except DeadLetterError as error:
                problems.append(str(error))
            except StoreUnavailableError as error:
                raise CommandError(f"{error} {done}", ExitCode.STORE_UNAVAILABLE) from error
            more(1)
    return closed, problems
