"""``hardened switch …``: turn a mechanism off without a deploy."""

from __future__ import annotations

import time

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.connect import hardening_of, once_more, whoami
from celery_hardened.cli.exit_codes import ReportingCommand, ReportingGroup
from celery_hardened.switches import SWITCHES

OFF_MEANS = {
    "retries": "failures become dead letters at once instead of being retried",
    "parking": "the dead letter of a chord member fails its chord at once instead of keeping it open",
}

_name = click.argument("name", type=click.Choice(SWITCHES))
_by = click.option("--by", default=whoami, show_default="user@host", help="Who, for the record.")


@click.command("list", cls=ReportingCommand)
@output.json_option
@click.pass_context
def list_switches(ctx: click.Context, as_json: bool) -> None:
    """List the switches, and who set them when and why."""
    states = once_more(hardening_of(ctx).switches.all)
    now = time.time()
    rows = []
    for name in SWITCHES:
        state = states.get(name)
        on = state is None or state.on
        if as_json:
            said = (
                {"by": state.by, "why": state.why, "at": state.at} if state else {"by": None, "why": None, "at": None}
            )
            output.print_json({"name": name, "on": on, "set": state is not None, **said})
        elif state:
            rows.append(
                (name, "on" if on else "OFF", text.age(state.at, now=now), state.by, state.why, OFF_MEANS[name])
            )
        else:
            rows.append((name, "on (default)", "-", "-", "-", OFF_MEANS[name]))
    if not as_json:
        output.print_table(ctx, ("SWITCH", "IS", "SINCE", "BY", "WHY", "OFF MEANS"), rows)


@click.command("set", cls=ReportingCommand)
@_name
@click.argument("value", type=click.Choice(["on", "off"]))
@click.option("--why", required=True, help="The reason, for the record.")
@_by
@click.pass_context
def set_switch(ctx: click.Context, name: str, value: str, why: str, by: str) -> None:
    """Turn a switch on or off, for every worker of the app."""
    hardening = hardening_of(ctx)
    once_more(lambda: hardening.switches.set(name, value == "on", by=by, why=why))
    click.echo(f"{name} is {value}; workers follow within {hardening.settings.switch_ttl:g} s")


@click.command("clear", cls=ReportingCommand)
@_name
@click.pass_context
def clear_switch(ctx: click.Context, name: str) -> None:
    """Forget what was set; the default, on, holds again."""
    hardening = hardening_of(ctx)
    once_more(lambda: hardening.switches.clear(name))
    click.echo(f"{name} is on (default); workers follow within {hardening.settings.switch_ttl:g} s")


@click.group(cls=ReportingGroup)
def switch() -> None:
    """Kill switches: retries and parking, read by every worker from Redis.

    Workers notice a change within hardened_switch_ttl seconds (5 by default).
    """


switch.add_command(list_switches)
switch.add_command(set_switch)
switch.add_command(clear_switch)
