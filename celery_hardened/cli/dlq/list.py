"""``hardened dlq list``: which letters there are, newest first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

import click

from celery_hardened.cli import output, record, text
from celery_hardened.cli.connect import hardening_of, once_more
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.cli.selection import selection
from celery_hardened.cli.text import without_passwords
from celery_hardened.dead_letter.contract import DeadLetterStore, Page, Query, StoredLetter

_COLUMNS = ("ID", "AGE", "STATE", "REASON", "TASK", "QUEUE", "ERROR")

#: Characters of the error in the table; `dlq show` has all of it.
_ERROR = 100

#: Letters fetched at once with ``--all``.
_PAGE = 500


@click.command("list", cls=ReportingCommand)
@selection
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Letters of one page.")
@click.option("--cursor", help="Go on where the page before ended.")
@click.option("--all", "everything", is_flag=True, help="All pages.")
@click.option("--show-args", is_flag=True, help="Decode the body and show the task's arguments.")
@output.json_option
@click.pass_context
def list_letters(
    ctx: click.Context,
    query: Query,
    limit: int,
    cursor: str | None,
    everything: bool,
    show_args: bool,
    as_json: bool,
) -> None:
    """List letters, newest first; without a filter, those that are open."""
    if everything and cursor:
        raise click.UsageError("--all has no use for --cursor.")
    store = hardening_of(ctx).dead_letters
    try:
        first = once_more(lambda: store.find(query, limit=_PAGE if everything else limit, cursor=cursor))
    except ValueError:
        raise click.BadParameter(f"{cursor!r} is no cursor that `dlq list` printed.", param_hint="--cursor") from None
    pages = _pages(store, query, first) if everything else iter((first,))

    if as_json:
        for page in pages:
            for stored in page.letters:
                output.print_json(record.summary(stored, show_args=show_args))
    else:
        now = time.time()
        columns = (*_COLUMNS, "ARGUMENTS") if show_args else _COLUMNS
        rows = [_row(stored, now=now, show_args=show_args) for page in pages for stored in page.letters]
        if rows:
            output.print_table(ctx, columns, rows, one_line=not show_args)
        else:
            output.note("no letters.")
    if first.cursor is not None and not everything:
        output.note(f"there are more: repeat with --cursor {first.cursor}")


def _pages(store: DeadLetterStore, query: Query, page: Page) -> Iterator[Page]:
    yield page
    while page.cursor is not None:
        page = store.find(query, limit=_PAGE, cursor=page.cursor)
        yield page


def _row(stored: StoredLetter, *, now: float, show_args: bool) -> Sequence[str]:
    letter = stored.letter
    row = (
        letter.id,
        text.age(stored.stored_at, now=now),
        stored.state,
        letter.reason,
        letter.task or "-",
        letter.queue or "-",
        text.cut(f"{letter.error_type or '-'}: {without_passwords(letter.error_message)}", _ERROR),
    )
    return (*row, json.dumps(record.arguments(letter), ensure_ascii=False)) if show_args else row
