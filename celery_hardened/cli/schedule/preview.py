"""``hardened schedule preview``: the slots of a range, and what the clock does to them."""

from __future__ import annotations

import time
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click

from celery_hardened.beat.course import course
from celery_hardened.cli import output
from celery_hardened.cli.connect import hardening_of, once_more
from celery_hardened.cli.exit_codes import ReportingCommand
from celery_hardened.cli.schedule import schedules, words
from celery_hardened.cli.schedule.period import check, period

if TYPE_CHECKING:
    from celery_hardened.beat.preview import Line
    from celery_hardened.beat.slots import Slots

_WEEK = 7 * 86_400.0


@click.command("preview", cls=ReportingCommand)
@click.argument("name", required=False)
@schedules.scheduler_option
@click.option("--crontab", "expression", metavar='"M H DOM MON DOW"', help="Of this crontab instead of a schedule's.")
@period(required=False)
@click.option("--zone", metavar="ZONE", help="Tell local times of this zone; with --crontab: read it in this zone.")
@click.option("--most", type=click.IntRange(min=1), default=1000, show_default=True, help="Slots.")
@output.json_option
@click.pass_context
def preview_schedule(
    ctx: click.Context,
    name: str | None,
    scheduler: str | None,
    expression: str | None,
    start: float | None,
    end: float | None,
    zone: str | None,
    most: int,
    as_json: bool,
) -> None:
    """Show the slots of a range of time, past or future, with what the changes of the clock mean for them.

    Pauses, jitter and policies are not looked at. With --crontab nothing but the app's time zone is asked for.
    """
    from celery_hardened.beat.preview import preview

    if (name is None) == (expression is None):
        raise click.UsageError("name a schedule, or give --crontab.")
    start = round(time.time(), 3) if start is None else start
    end = start + _WEEK if end is None else end
    check(start, end)
    told = _zone(ctx, zone)
    if expression is not None:
        slots, own = _of_expression(ctx, expression, told)
    else:
        slots, own = _of_schedule(ctx, str(name), scheduler, start)
    with schedules.asking(str(name)):
        lines = preview(slots, start, end, zone=told or own, most=most)
    if as_json:
        for line in lines:
            output.print_json(_record(line))
    elif lines:
        output.print_table(ctx, ("LOCAL", "IN UTC", "DUE", "NOTE"), [_row(line) for line in lines])
    else:
        output.note(f"nothing is due from {words.utc(start)} to {words.utc(end)}.")
    if sum(line.due for line in lines) == most:
        output.note(f"{most} slots are shown; there may be more. See --most.")


def _zone(ctx: click.Context, zone: str | None) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    if zone is None:
        return None
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise click.BadParameter(f"there is no time zone {zone!r}.", ctx, param_hint="--zone") from None


def _of_expression(ctx: click.Context, expression: str, zone: tzinfo | None) -> tuple[Slots, tzinfo]:
    from celery.schedules import crontab

    from celery_hardened.beat.kinds import when_of
    from celery_hardened.errors import ConfigurationError

    app_zone = hardening_of(ctx).app.timezone
    try:
        when = when_of(_crontab(crontab, expression), app_timezone=app_zone, zone=zone)
    except (ValueError, ConfigurationError) as problem:
        raise click.BadParameter(f"{expression!r} is no crontab: {problem}", ctx, param_hint="--crontab") from None
    return when.slots(0.0), words.zone_of(when, app_zone)


def _crontab(kind: Any, expression: str) -> Any:
    fields = expression.split()
    if len(fields) != 5:
        raise ValueError("it needs five fields: minute, hour, day of month, month, day of week.")
    minute, hour, day, month, weekday = fields
    return kind(minute=minute, hour=hour, day_of_month=day, month_of_year=month, day_of_week=weekday)


def _of_schedule(ctx: click.Context, name: str, scheduler: str | None, start: float) -> tuple[Slots, tzinfo]:
    from celery_hardened.beat.slots import Between, Interval

    known = schedules.read(ctx, scheduler)
    known.require([name])
    schedule = known.schedules.get(name) or known.usable(name)
    anchor = start
    if isinstance(schedule.when.slots(0.0), Interval):  # all others hang on nothing, and Redis need not be there
        store = schedules.beat_store(known.hardening)
        found = course(schedule, once_more(lambda: store.record(name)), time.time())
        if found.anchored:
            anchor = found.record.anchor
        else:
            anchor = schedule.when.anchored(start)
            output.note(f"no beat has seen {name!r} yet; its slots are counted from {words.utc(anchor)} here.")
    slots = Between(schedule.when.slots(anchor), schedule.start, schedule.end)
    return slots, words.zone_of(schedule.when, known.hardening.app.timezone)


def _row(line: Line) -> tuple[str, ...]:
    return f"{line.local}{line.offset}", words.utc(line.at), "due" if line.due else "-", line.note or "-"


def _record(line: Line) -> dict[str, Any]:
    return {
        "at": line.at, "due": line.due, "local": line.local, "offset": line.offset, "note": line.note or None
    }  # fmt: skip
