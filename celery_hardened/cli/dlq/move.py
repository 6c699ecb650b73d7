"""``hardened dlq export`` and ``import``: letters to a file and back, or to another store."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.archive import dump_line, load_line
from celery_hardened.cli.connect import hardening_of, once_more
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.cli.selection import chosen, selection
from celery_hardened.dead_letter.contract import DeadLetterStore, Query, StoredLetter
from celery_hardened.errors import EnvelopeError

#: Letters read or written at once.
_BATCH = 200


@click.command("export", cls=ReportingCommand)
@click.argument("file", metavar="FILE|-")
@selection
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@output.json_option
@click.pass_context
def export_letters(ctx: click.Context, file: str, query: Query, force: bool, as_json: bool) -> None:
    """Write letters to FILE (- is standard output), one JSON object a line.

    The file holds whole messages, arguments included, and is readable by you
    alone. The letters stay where they are. With - the report goes to standard
    error.
    """
    store = hardening_of(ctx).dead_letters
    total = once_more(lambda: store.count(query))
    skipped = chosen(store, query).skipped if query.ids else []
    written = 0
    try:
        with _written_whole(file, force=force) as target, output.progress("exporting", total) as more:
            for batch in _batches(store, query):
                target.write(b"".join(dump_line(stored).encode("ascii") + b"\n" for stored in batch))
                written += len(batch)
                more(len(batch))
    except KeyboardInterrupt:
        left = "what was printed so far is whole lines" if file == "-" else f"{file} was not written"
        raise CommandError(f"stopped: {left}. Nothing in the store was changed.", ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        raise  # click ends quietly, as every filter does when nobody reads any more
    except OSError as problem:
        raise CommandError(f"{file} could not be written: {problem}") from problem

    to_stderr = file == "-"
    if as_json and not to_stderr:
        output.print_json({"exported": written, "file": file})
    else:
        click.echo(f"exported {text.amount(written)}", err=to_stderr)
    if skipped:
        raise CommandError("\n".join(skipped))


@click.command("import", cls=ReportingCommand)
@click.argument("file", metavar="FILE|-")
@output.json_option
@click.pass_context
def import_letters(ctx: click.Context, file: str, as_json: bool) -> None:
    """Read letters from FILE (- is standard input), as `dlq export` wrote them.

    A letter that is there already is left as it is, so importing a file twice
    does no harm. Lines that cannot be read are reported by number and the
    others are imported; the exit code is then 1.
    """
    store = hardening_of(ctx).dead_letters
    once_more(lambda: store.count(Query(ids=("none",))))  # not put_many, which must not be counted twice
    read = new = 0
    bad: list[dict[str, object]] = []
    batch: list[StoredLetter] = []
    try:
        with _opened(file) as source, output.progress("importing", _bytes_in(file)) as more:
            for number, line in enumerate(source, start=1):
                more(len(line))
                if not line.strip():
                    continue
                try:
                    batch.append(load_line(line))
                except EnvelopeError as error:
                    bad.append({"line": number, "problem": error.problem})
                    output.note(f"line {number}: {error.problem}")
                if len(batch) == _BATCH:
                    new += store.put_many(batch)
                    read += len(batch)
                    batch = []
            if batch:
                new += store.put_many(batch)
                read += len(batch)
    except KeyboardInterrupt:
        raise CommandError(
            f"stopped: {text.amount(new)} imported so far. The same command goes on with the rest.",
            ExitCode.INTERRUPTED,
        ) from None
    except OSError as problem:
        raise CommandError(f"{file} could not be read: {problem}") from problem

    if as_json:
        output.print_json({"imported": new, "already_there": read - new, "bad": bad})
    else:
        click.echo(f"imported {text.amount(new)}; {read - new} were there already, {len(bad)} lines were bad")
    if bad:
        raise CommandError(f"{len(bad)} lines could not be read; the others are imported.")


def _batches(store: DeadLetterStore, query: Query) -> Iterator[tuple[StoredLetter, ...]]:
    page = store.find(query, limit=_BATCH)
    yield page.letters
    while page.cursor is not None:
        page = store.find(query, limit=_BATCH, cursor=page.cursor)
        yield page.letters


@contextmanager
def _written_whole(file: str, *, force: bool) -> Iterator[BinaryIO]:
    """Open *file* so that it appears complete or not at all."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    if path.exists() and not force:
        raise CommandError(f"{file} is there already. Say --force to overwrite it; nothing was written.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
    else:
        with Path(file).open("rb") as source:
            yield source


def _bytes_in(file: str) -> int:
    """What a bar can be drawn for; 0 where that is not known."""
    return 0 if file == "-" else Path(file).stat().st_size
