"""``hardened leader``: which beat leads, and how it fares."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import hardening_of, once_more
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand

#: Seconds between two looks of --watch.
EVERY = 0.5

#: Seconds after which a silent main loop is said to be so.
SILENT = 5.0

_CAME = {
    "free": "nobody led before",
    "released": "the one before let go",
    "client_gone": "the one before was gone",
    "expired": "the lease of the one before ran out",
}
_ENDED = {
    "": "No beat has led yet.",
    "released": "Nobody leads: the last one let go, and no other took over.",
    "client_gone": "Nobody leads: the last one is gone, and no other took over.",
    "expired": "Nobody leads: the lease of the last one ran out, and no other took over.",
}


@click.command("leader", cls=ReportingCommand)
@click.option("--watch", is_flag=True, help="Go on, and print each change, until Ctrl-C.")
@output.json_option
@click.pass_context
def leader(ctx: click.Context, watch: bool, as_json: bool) -> None:
    """Say which beat leads: since when, its last tick, what is left of its lease.

    Exit code 1 if nobody does.
    """
    state = _state_of(ctx)
    found = once_more(state)
    _print(ctx, found, as_json=as_json)
    while watch:
        time.sleep(EVERY)
        seen, found = found, once_more(state)
        if _essence(found) != _essence(seen):
            _print(ctx, found, as_json=as_json)
    if not found["leads"]:
        raise CommandError(found["trouble"], ExitCode.FAILED)


def _state_of(ctx: click.Context) -> Callable[[], dict[str, Any]]:
    from celery_hardened.beat.leader_store import LeaderStore
    from celery_hardened.beat.names import Keys

    hardening = hardening_of(ctx)
    store = LeaderStore(hardening.redis, Keys(hardening.prefix), ttl=1.0)

    def state() -> dict[str, Any]:
        record = store.read()
        trouble = None
        if not record.leads:
            trouble = _ENDED.get(record.how, _ENDED["expired"])
        elif record.client and store.is_connected(record.client) is False:
            trouble = "Its connection is gone: another takes over, unless it comes back."
        elif record.tick is not None and record.server - record.tick > SILENT:
            trouble = f"Its main loop has been silent for {record.server - record.tick:.0f} s."
        of = record.identity
        return {
            "leads": record.leads,
            "term": record.term,
            "host": of.get("host"),
            "pid": of.get("pid"),
            "version": of.get("version"),
            "since": record.since,
            "how": record.how or None,
            "tick": record.tick,
            "clock": record.clock,
            "left": record.left,
            "now": record.server,
            "trouble": trouble,
        }

    return state


def _essence(found: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a change: not that time passes."""
    return found["leads"], found["term"], found["trouble"] is None


def _print(ctx: click.Context, found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    if not found["leads"]:
        if found["term"]:
            last = f"{found['host']} (pid {found['pid']})"
            click.echo(text.printable(f"The last leader was {last}, term {found['term']}."))
        return
    row = (
        str(found["host"]),
        str(found["pid"]),
        str(found["term"]),
        text.date(found["since"]),
        f"{max(0.0, found['now'] - found['tick']):.1f}s ago",
        f"{found['left']:.1f}s",
        _CAME.get(found["how"], found["how"] or "-"),
    )
    output.print_table(ctx, ("HOST", "PID", "TERM", "SINCE", "LAST TICK", "LEASE LEFT", "IT LEADS BECAUSE"), [row])
    if found["trouble"]:
        output.note(found["trouble"])
