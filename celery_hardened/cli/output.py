"""How answers look: tables for people, JSON for machines, a bar for the impatient.

What a task put into its errors is printed as text, whatever it holds: terminal
escapes and rich markup in an error message are shown, not obeyed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from celery_hardened.cli.exit_codes import CommandError
from celery_hardened.cli.text import printable

#: Blanks between two columns.
_GAP = 2

#: Characters the last column gets, however narrow the terminal is.
_LEAST = 30

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def on_terminal() -> bool:
    """Whether standard output is a terminal: somebody is looking at it."""
    return sys.stdout.isatty()


def somebody_there() -> bool:
    """Whether standard input is a terminal: a question can be answered."""
    return sys.stdin.isatty()


def print_json(record: Any) -> None:
    """Print one object on one line, pure ASCII."""
    click.echo(json.dumps(record, separators=(",", ":"), default=str))


def print_table(
    ctx: click.Context, columns: Sequence[str], rows: Sequence[Sequence[str]], *, one_line: bool = False
) -> None:
    """Print *rows* aligned: with rich on a terminal, else as plain text of any width.

    On a terminal the last column takes what room there is: wrapped, or cut with *one_line*.
    """
    cells = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
    if not (on_terminal() and _print_rich_table(ctx, columns, cells, one_line=one_line)):
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for row in (columns, *cells):
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich_table(
    ctx: click.Context, columns: Sequence[str], rows: Sequence[Sequence[str]], *, one_line: bool
) -> bool:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console(color_system="auto" if colors(ctx) else None, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    # All but the last column is there to be copied, so it is never cut: rather the terminal wraps.
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    fixed = sum(widths[:-1]) + _GAP * len(columns)
    room = max(_LEAST, console.width - fixed)
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(columns[-1], no_wrap=one_line, overflow="ellipsis" if one_line else "fold", max_width=room)
    console.width = max(console.width, fixed + room)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    return True


def colors(ctx: click.Context) -> bool:
    """Whether output may be coloured: a terminal, no NO_COLOR, no ``celery --no-color``."""
    return on_terminal() and not os.environ.get("NO_COLOR") and not ctx.obj.no_color


def heading(ctx: click.Context, text: str) -> None:
    """Print the title of a section."""
    click.echo()
    click.echo(click.style(text, bold=True) if colors(ctx) else text)


def note(text: str) -> None:
    """Say something beside the answer, on standard error."""
    click.echo(printable(text), err=True)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if that is a terminal; yields how to say "*n* more are done"."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda _more: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr) as bar:
        yield bar.update


def confirm(question: str, *, letters: int, yes: bool) -> None:
    """Ask before something is done to more than one letter.

    Raises:
        CommandError: The answer was no, or nobody is there to be asked.
    """
    if yes or letters <= 1:
        return
    if not somebody_there():
        raise CommandError("refused: nobody is there to confirm this. Say --yes to mean it; nothing was done.")
    if not click.confirm(question, err=True):
        raise CommandError("nothing was done.")
