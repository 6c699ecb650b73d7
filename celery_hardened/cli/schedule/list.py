"""``hardened schedule list``: what is fired when, and how it fares."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click

from celery_hardened.cli import output, text
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.cli.schedule import schedules, words
from celery_hardened.cli.schedule.state import details


@click.command("list", cls=ReportingCommand)
@click.argument("pattern", required=False)
@schedules.scheduler_option
@click.option("--problems", is_flag=True, help="Only those that something is wrong with.")
@click.option("--paused", is_flag=True, help="Only those that are paused.")
@output.json_option
@click.pass_context
def list_schedules(
    ctx: click.Context, pattern: str | None, scheduler: str | None, problems: bool, paused: bool, as_json: bool
) -> None:
    """List schedules: timing, next slot, what was fired and what was not, pauses, problems.

    PATTERN is a name, or one with * and ?. No beat need run.
    """
    known = schedules.read(ctx, scheduler)
    names = [name for name in known.names if pattern is None or fnmatchcase(name, pattern)]
    if pattern is not None and not names and not set("*?[") & set(pattern):
        known.require([pattern])
    found = [one for one in details(known, names) if (one["problem"] or not problems) and (one["paused"] or not paused)]
    if as_json:
        for one in found:
            output.print_json(one)
    elif found:
        _print(ctx, known, found)
    else:
        output.note("no such schedules." if pattern or problems or paused else "there are no schedules.")


def _print(ctx: click.Context, known: schedules.Known, found: list[dict[str, Any]]) -> None:
    from celery_hardened.pipeline.beat import policy_of

    defaults = policy_of(known.hardening.settings)
    rows = []
    for one in found:
        schedule = known.schedules.get(one["name"])
        zone = words.zone_of(schedule.when, known.hardening.app.timezone) if schedule else None
        rows.append(
            (
                one["name"],
                one["task"] or "-",
                one["timing"] or "-",
                words.local(one["next"], zone) if zone else "-",
                words.utc(one["next"]),
                words.utc(one["last_slot"]),
                str(one["fired"]),
                ", ".join(f"{count} {reason}" for reason, count in sorted(one["not_fired"].items())) or "0",
                (words.policy(schedule, defaults) if schedule else "") or "-",
                one["running"] or "-",
                _state(one),
            )
        )
    columns = (
        "NAME", "TASK", "WHEN", "NEXT", "NEXT IN UTC", "LAST SLOT FIRED", "FIRED", "NOT FIRED", "POLICY", "RUNNING",
        "STATE",
    )  # fmt: skip
    output.print_table(ctx, columns, rows)


def _state(one: dict[str, Any]) -> str:
    said = []
    if pause := one["paused"]:
        until = f" until {text.date(pause['until'])}" if pause["until"] else ""
        said.append(f"PAUSED{until} by {pause['by']}: {pause['why']}")
    if skip := one["skipped"]:
        said.append(f"slot {words.utc(skip['slot'])} SKIPPED by {skip['by']}: {skip['why']}")
    if one["problem"]:
        since = f" since {text.date(one['problem_since'])}" if one["problem_since"] else ""
        said.append(f"PROBLEM{since}: {one['problem']}")
    if one["waiting"] is not None:
        said.append(f"slot {words.utc(one['waiting'])} waits for the run before it")
    if one["overdue"] and not one["paused"]:
        said.append(f"{one['overdue']} slots are overdue: no beat has decided them yet")
    if one["done"]:
        said.append("over")
    elif one["cursor"] is None and not one["problem"]:
        said.append("new: no beat has seen it yet, as it is timed now")
    return "; ".join(said) or "ok"
