"""``hardened dlq redrive``: send letters again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import hardening_of, once_more, whoami
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.cli.selection import chosen, described, require_selection, selection
from celery_hardened.dead_letter.canary import Canary
from celery_hardened.dead_letter.contract import Query
from celery_hardened.dead_letter.redrive import LEASE
from celery_hardened.dead_letter.redrive_run import RedriveReport
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening

#: Ids named for each reason of a refusal; ``--json`` has them all.
_NAMED = 3


def _json_of(kind: type) -> Any:
    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as problem:
            raise click.BadParameter(f"this is no JSON: {problem}.", ctx, param) from None
        if not isinstance(found, kind):
            wanted = "a list, like [1, 2]" if kind is list else 'an object, like {"cents": 500}'
            raise click.BadParameter(f"it must be {wanted}.", ctx, param)
        return found

    return read


@click.command("redrive", cls=ReportingCommand)
@selection
@click.option("--all", "everything", is_flag=True, help="Every open letter.")
@click.option("--limit", type=click.IntRange(min=1), help="Messages at most.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent and refused; change nothing.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second at most.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Letters taken at a time."
)
@click.option("--canary", type=click.IntRange(min=1), metavar="N", help="Send N first; go on only if they fare well.")
@click.option(
    "--canary-max-failed",
    type=click.FloatRange(0, 100),
    default=0.0,
    show_default=True,
    metavar="PERCENT",
    help="More of the canary than this may not fail.",
)
@click.option(
    "--canary-wait",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="A canary that has not finished by then has failed.",
)
@click.option("--to-queue", help="Send them to this queue instead of their own.")
@click.option(
    "--edit-args", callback=_json_of(list), metavar="JSON", help="Replace the positional arguments by this list."
)
@click.option(
    "--edit-kwargs", callback=_json_of(dict), metavar="JSON", help="Lay this object over the keyword arguments."
)
@click.option("--force", is_flag=True, help="Also letters redriven too often, or whose chord is gone.")
@click.option("--why", default="", help="The reason, for the audit.")
@click.option("--by", default=whoami, show_default="user@host", help="Who, for the audit.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output.json_option
@click.pass_context
def redrive_letters(
    ctx: click.Context,
    /,
    query: Query,
    everything: bool,
    canary: int | None,
    canary_max_failed: float,
    canary_wait: float,
    edit_args: list[Any] | None,
    edit_kwargs: dict[str, Any] | None,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Send letters again, oldest first, each exactly once.

    The message is the one that failed: same task id, body and headers; retries,
    eta and expiry start anew. A redrive that was stopped or killed is resumed by
    the same command.
    """
    require_selection(query, everything=everything)
    if options["dry_run"]:
        yes = True
    hardening = hardening_of(ctx)
    store = hardening.dead_letters
    total = once_more(lambda: store.count(query))
    if query.ids:
        chosen(store, query)  # a misspelt id stops it all; a closed letter is refused by the redrive
    letters = min(total, options["limit"] or total)
    output.confirm(f"Redrive {text.amount(letters)} ({described(query)})?", letters=letters, yes=yes)
    edit = {"args": edit_args, "kwargs": edit_kwargs}
    options["edit"] = {name: value for name, value in edit.items() if value is not None} or None
    if canary is not None:
        options["canary"] = Canary(count=canary, max_failed_percent=canary_max_failed, wait=canary_wait)

    report = _redrive(hardening, query, letters, options)
    if as_json:
        output.print_json({"selected": total, **asdict(report), "dry_run": options["dry_run"]})
    else:
        _print(report, total=total, dry_run=options["dry_run"])
    if report.stopped:
        raise CommandError(report.stopped)
    if report.refused or report.failed or report.skipped:
        ctx.exit(int(ExitCode.FAILED))


def _redrive(hardening: Hardening, query: Query, letters: int, options: Mapping[str, Any]) -> RedriveReport:
    """Run it under a progress bar; cut short, say how far it came."""
    dealt_with = 0

    def progress(seen: int, _total: int) -> None:
        nonlocal dealt_with
        more(seen - dealt_with)
        dealt_with = seen

    def far() -> str:
        return (
            f"About {dealt_with} of {text.amount(letters)} were dealt with; what was sent is sent, the rest is as "
            f"it was. The same command goes on with it; letters that were under way wait up to {LEASE:g} s first."
        )

    try:
        with output.progress("redriving", letters) as more:
            report: RedriveReport = hardening.redrive(query, progress=progress, **options)
    except KeyboardInterrupt:
        raise CommandError(f"stopped. {far()}", ExitCode.INTERRUPTED) from None
    except StoreUnavailableError as error:
        raise CommandError(f"{error} {far()}", ExitCode.STORE_UNAVAILABLE) from error
    return report


def _print(report: RedriveReport, *, total: int, dry_run: bool) -> None:
    click.echo(f"{'would send' if dry_run else 'sent'} {report.sent} of {text.amount(total)}")
    if report.canary:
        fared = report.canary
        click.echo(f"canary: {fared.resolved} succeeded, {fared.died} died again, {fared.pending} had not finished")
    if report.skipped:
        click.echo(f"{text.amount(report.skipped)} skipped: closed or redriven by somebody else in this moment")
    for what, letters in (("refused", report.refused), ("not sent", report.failed)):
        reasons: dict[str, list[str]] = {}
        for letter_id, why in letters.items():
            reasons.setdefault(why, []).append(letter_id)
        for why, ids in reasons.items():
            named = ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
            output.note(f"{text.amount(len(ids))} {what}: {why}\n  {named}")
