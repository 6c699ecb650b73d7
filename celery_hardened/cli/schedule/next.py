"""``hardened schedule next``: the slots to come."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import click

from celery_hardened.beat.course import course, overdue, upcoming
from celery_hardened.cli import output
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.cli.schedule import schedules, words
from celery_hardened.cli.schedule.state import Kept, kept


@click.command("next", cls=ReportingCommand)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@schedules.scheduler_option
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="Slots of each schedule.")
@output.json_option
@click.pass_context
def next_slots(ctx: click.Context, names: tuple[str, ...], scheduler: str | None, count: int, as_json: bool) -> None:
    """Say when schedules are due next, the earliest first; all of them, unless they are named.

    No beat need run. A slot that jitter puts off is given with the latest moment.
    """
    known = schedules.read(ctx, scheduler)
    known.require(names)
    wanted = [name for name in (dict.fromkeys(names) or known.names) if name in known.schedules]
    redis, now = kept(known), time.time()
    found: list[dict[str, Any]] = []
    notes = [f"schedule {name!r} cannot be used: {known.problems[name]}" for name in names if name in known.problems]
    for name in wanted:
        if name in known.problems:
            continue
        slots, said = _of(known, redis, name, count, now)
        found += slots
        notes += said
    found.sort(key=lambda one: (one["slot"], one["name"]))
    if as_json:
        for one in found:
            output.print_json(one)
    elif found:
        rows = []
        for one in found:
            zone = words.zone_of(known.schedules[one["name"]].when, known.hardening.app.timezone)
            until = f" to {words.utc(one['latest'])}" if one["latest"] != one["slot"] else ""
            rows.append((words.utc(one["slot"]) + until, words.local(one["slot"], zone), one["name"], one["task"]))
        output.print_table(ctx, ("SLOT IN UTC", "SLOT", "NAME", "TASK"), rows)
    for note in notes:
        output.note(note)


def _of(
    known: schedules.Known, redis: Kept, name: str, count: int, now: float
) -> tuple[list[dict[str, Any]], list[str]]:
    """The slots of one schedule, and what else is to be said of it."""
    schedule, notes = known.schedules[name], []
    try:
        found = course(schedule, redis.records.get(name), now)
        slots = list(islice(upcoming(schedule, found, now), count))
        late = overdue(schedule, found, now) if found.begun else None
    except Exception as problem:  # noqa: BLE001 - a class of the user's own may raise anything
        return [], [f"{name}: its next slot cannot be found ({type(problem).__name__}: {problem})."]
    if not found.anchored:
        notes.append(f"{name}: {words.timing(schedule.when)}, from when a beat first sees it.")
    elif not slots:
        notes.append(f"{name}: {'it is over' if found.record.done else 'it has no slots to come'}.")
    if late is not None:
        amount = "1 slot is" if late[0] == 1 else f"{late[0]} slots are"
        notes.append(
            f"{name}: {amount} overdue, from {words.utc(late[1])} on; what becomes of that is for its policy "
            f"(missed_run={schedule.policy.missed_run}), once a beat leads."
        )
    if pause := redis.paused.get(name):
        until = f"until {words.utc(pause.until)}" if pause.until else "until it is resumed"
        notes.append(f"{name}: paused {until}; slots until then are not fired.")
    if skip := redis.skips.get(name):
        notes.append(f"{name}: slot {words.utc(skip.slot)} is skipped, by {skip.by}: {skip.why}")
    jitter = schedule.policy.jitter
    return [
        {"name": name, "task": schedule.task, "slot": slot, "latest": round(slot + jitter, 3)} for slot in slots
    ], notes
