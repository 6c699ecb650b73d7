"""``hardened dlq stats``: how many letters of which kind, the largest cause first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import hardening_of, once_more
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.cli.text import without_passwords
from celery_hardened.dead_letter.contract import DeadLetterStore, Query, Stats


@click.command("stats", cls=ReportingCommand)
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Causes and tasks shown.")
@output.json_option
@click.pass_context
def show_stats(ctx: click.Context, top: int, as_json: bool) -> None:
    """Count the open letters by cause, reason, queue and task, and what retention dropped."""
    store = hardening_of(ctx).dead_letters
    stats = once_more(store.stats)
    causes = _causes(store, stats, top=top)
    if as_json:
        output.print_json(_record(stats, causes))
    else:
        _print(ctx, stats, causes, top=top)


def _causes(store: DeadLetterStore, stats: Stats, *, top: int) -> list[dict[str, Any]]:
    """The *top* fingerprints with what their newest letter says about them."""
    causes = []
    for fingerprint, count in _largest(stats.by_fingerprint)[:top]:
        page = store.find(Query(fingerprint=fingerprint), limit=1)
        if page.letters:  # else they were all closed just now
            newest = page.letters[0]
            causes.append(
                {
                    "fingerprint": fingerprint,
                    "count": count,
                    "task": newest.letter.task,
                    "error_type": newest.letter.error_type,
                    "error_message": without_passwords(newest.letter.error_message),
                    "newest_id": newest.letter.id,
                    "newest": newest.stored_at,
                }
            )
    return causes


def _record(stats: Stats, causes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "open": stats.open,
        "bytes": stats.bytes,
        "oldest": stats.oldest,
        "newest": stats.newest,
        "causes": causes,
        "by_reason": dict(_largest(stats.by_reason)),
        "by_queue": dict(_largest(stats.by_queue)),
        "by_error_type": dict(_largest(stats.by_error_type)),
        "by_task": dict(_largest(stats.by_task)),
        "by_state": dict(_largest(stats.by_state)),
        "dropped": dict(stats.dropped),
    }


def _print(ctx: click.Context, stats: Stats, causes: list[dict[str, Any]], *, top: int) -> None:
    now = time.time()
    line = f"{text.amount(stats.open)} open, {text.size(stats.bytes)} kept"
    if stats.open:
        line += f", oldest {text.age(stats.oldest, now=now)}, newest {text.age(stats.newest, now=now)}"
    click.echo(line)
    for cause in causes:
        task = cause["task"] or "messages without a task"
        said = text.cut(cause["error_message"], 100)
        click.echo(
            text.printable(
                f"{cause['count']:>6} × {cause['error_type'] or 'no error'} in {task}"  # noqa: RUF001
                f"  [{cause['fingerprint']}, newest {text.age(cause['newest'], now=now)}]  {said}"
            ).rstrip()
        )
    sections = {
        "REASON": stats.by_reason,
        "QUEUE": stats.by_queue,
        "TASK": stats.by_task,
        "STATE, CLOSED ONES TOO": stats.by_state,
    }
    for title, counts in sections.items():
        if rows := [(name or "-", str(count)) for name, count in _largest(counts)[:top]]:
            click.echo()
            output.print_table(ctx, (title, "LETTERS"), rows)
    if lost := sum(stats.dropped.values()):
        causes_of_loss = ", ".join(f"{cause} {count}" for cause, count in sorted(stats.dropped.items()) if count)
        click.echo()
        click.echo(f"{text.amount(lost)} dropped by retention while open ({causes_of_loss})")


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Most first; equal ones by name, so that two calls agree."""
    return sorted(((name, count) for name, count in counts.items() if count), key=lambda item: (-item[1], item[0]))
