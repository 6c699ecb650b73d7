"""``hardened dlq show ID``: all that is known about one letter."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from celery_hardened.cli import output, record, text
from celery_hardened.cli.connect import hardening_of, once_more
from celery_hardened.cli.exit_codes import ReportingCommand


@click.command("show", cls=ReportingCommand)
@click.argument("letter_id", metavar="ID")
@click.option("--show-args", is_flag=True, help="Decode the body and show the task's arguments.")
@output.json_option
@click.pass_context
def show_letter(ctx: click.Context, letter_id: str, show_args: bool, as_json: bool) -> None:
    """Show one letter: error, attempts, traceback, message, and who did what to it."""
    store = hardening_of(ctx).dead_letters
    known = record.details(once_more(lambda: store.get(letter_id)), show_args=show_args)
    if as_json:
        output.print_json(known)
        return

    _print_facts(known)
    _print_timeline(ctx, known)
    if known["traceback"]:
        output.heading(ctx, "Traceback")
        click.echo(text.printable(known["traceback"].rstrip()))
    output.heading(ctx, "Audit")
    for entry in known["audit"]:
        why = f": {entry['why']}" if entry["why"] else ""
        click.echo(text.printable(f"{text.date(entry['at'])}  {entry['action']} by {entry['by']}{why}"))
    if not known["audit"]:
        click.echo("nobody has done anything to it yet")


def _print_facts(known: dict[str, Any]) -> None:
    error = known["error_type"] or "-"
    body = f"{text.size(known['body_bytes'])} {known['content_type'] or 'of unknown type'}"
    facts: list[tuple[str, object]] = [
        ("letter", known["id"]),
        ("state", known["state"]),
        ("reason", known["reason"]),
        ("task", known["task"]),
        ("task id", known["task_id"]),
        ("root id", known["root_id"]),
        ("parent id", known["parent_id"]),
        ("group id", known["group_id"]),
        ("parked for a chord", "yes" if known["parked"] else None),
        ("queue", known["queue"]),
        ("exchange", known["exchange"]),
        ("routing key", known["routing_key"]),
        ("error", f"{error}: {known['error_message']}" if known["error_message"] else error),
        ("fingerprint", known["fingerprint"]),
        ("retries spent", known["attempt"]),
        ("deaths", known["deaths"]),
        ("redrives", known["redrives"]),
        ("died again as", known["successor"]),
        ("worker", known["worker"]),
        ("code version", known["version"]),
        ("arguments (listed)", _json(known["log_args"]) if known["log_args"] else None),
        ("arguments", _json(known["arguments"]) if "arguments" in known else "hidden; --show-args shows them"),
        ("body", body),
        ("headers", _json(known["headers"])),
        ("properties", _json(known["properties"])),
    ]
    shown = [(name, str(value)) for name, value in facts if value not in (None, "")]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        click.echo(f"{name.ljust(width)}  {text.printable(value)}")


def _print_timeline(ctx: click.Context, known: dict[str, Any]) -> None:
    moments = [(known["first_published"], "published", "")]
    moments += [(each["at"], f"attempt failed: {each['error']}", each["worker"]) for each in known["attempts"]]
    if not known["attempts"]:
        moments.append((known["first_failed"], "first failed", ""))
        moments.append((known["last_failed"] or None, "failed for good", known["worker"]))
    moments.append((known["stored_at"], "became a dead letter", ""))
    now = time.time()
    output.heading(ctx, "Timeline")
    for at, what, where in moments:
        if at is not None:
            line = f"{text.date(at)}  {text.age(at, now=now):>4} ago  {what}{' on ' + where if where else ''}"
            click.echo(text.printable(line))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
