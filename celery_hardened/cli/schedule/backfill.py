"""``hardened schedule backfill``: fire a schedule for slots of the past."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from celery_hardened.beat.course import course
from celery_hardened.beat.past import became, past_slots
from celery_hardened.cli import output
from celery_hardened.cli.connect import once_more, whoami
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.cli.interrupt import interrupt_held_back
from celery_hardened.cli.schedule import schedules, words
from celery_hardened.cli.schedule.period import check, period
from celery_hardened.errors import NotFiredError, StoreUnavailableError

if TYPE_CHECKING:
    from celery_hardened.beat.schedule import Schedule


@click.command("backfill", cls=ReportingCommand)
@click.argument("name")
@schedules.scheduler_option
@period(required=True)
@click.option("--most", type=click.IntRange(min=1), default=100, show_default=True, help="Refuse more slots than this.")
@click.option(
    "--pace", type=click.FloatRange(min=0), default=0.1, show_default=True, metavar="SECONDS", help="Between two runs."
)
@click.option("--dry-run", is_flag=True, help="Show the slots; fire none.")
@click.option("--by", default=whoami, show_default="user@host", help="Who, for the history.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output.json_option
@click.pass_context
def backfill_schedule(
    ctx: click.Context,
    name: str,
    scheduler: str | None,
    start: float,
    end: float,
    most: int,
    pace: float,
    dry_run: bool,
    by: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Fire a schedule for its slots from one moment to another, oldest first, after showing them.

    Each has the task id of its slot. It runs beside whatever runs, though the schedule be paused. Slots that
    were fired before are fired again; those that no beat has decided yet are left to it.
    """
    from celery_hardened.beat.names import task_id_of

    check(start, end)
    known = schedules.read(ctx, scheduler)
    schedule = known.usable(name)
    with schedules.asking(name):
        slots = _slots(known, schedule, start, end, most)
    if not slots:
        raise CommandError("nothing to backfill: the schedule has no slot there that was decided.", ExitCode.FAILED)
    became = _became(known, name, slots)
    rows = [
        {"slot": slot, "task_id": task_id_of(name, slot), "became": became.get(slot), "fired": False} for slot in slots
    ]
    if not as_json:
        _show(ctx, known, schedule, rows)
    if dry_run:
        _report(rows, as_json=as_json, dry_run=True)
        return
    question = "Fire it for this slot?" if len(slots) == 1 else f"Fire it for these {len(slots)} slots?"
    output.confirm(question, letters=len(slots), yes=yes)
    _fire(known, schedule, rows, by=by, pace=pace)
    _report(rows, as_json=as_json, dry_run=False)


def _slots(known: schedules.Known, schedule: Schedule, start: float, end: float, most: int) -> list[float]:
    now = time.time()
    store = schedules.beat_store(known.hardening)
    found = course(schedule, once_more(lambda: store.record(schedule.name)), now)
    if not found.anchored:
        raise CommandError(
            f"schedule {schedule.name!r} counts its slots ({words.timing(schedule.when)}) from when a beat first sees "
            f"it, and none has. It has no slots in the past."
        )
    past = past_slots(schedule, found, start, end, now=now, most=most)
    for slot in past.held:
        output.note(f"slot {words.utc(slot)} is left to the beats: it waits to be fired.")
    if past.more:
        raise CommandError(
            f"there are more than {most} slots from {words.utc(start)} to {words.utc(end)}. Say --most N to mean "
            f"it, or name less time; nothing was done."
        )
    if past.undecided is not None:
        output.note(f"slots from {words.utc(past.undecided)} on are left to the beats: none has decided them yet.")
    elif past.to_come is not None:
        output.note(f"slots from {words.utc(past.to_come)} on are still to come.")
    if past.begins is not None:
        output.note(f"its slots are counted from {words.utc(past.begins)}; before that it has none.")
    return list(past.slots)


def _became(known: schedules.Known, name: str, slots: list[float]) -> dict[float, str]:
    """What the history says of *slots*: the latest outcome by slot."""
    store = schedules.beat_store(known.hardening)
    lines = once_more(lambda: store.history(name, max(1, known.hardening.settings.beat_history)))
    return {slot: one.outcome for slot, one in became(lines, slots).items()}


def _show(ctx: click.Context, known: schedules.Known, schedule: Schedule, rows: list[dict[str, Any]]) -> None:
    zone = words.zone_of(schedule.when, known.hardening.app.timezone)
    output.print_table(
        ctx,
        ("SLOT IN UTC", "SLOT", "TASK ID", "SO FAR"),
        [
            (words.utc(row["slot"]), words.local(row["slot"], zone), row["task_id"], row["became"] or "-")
            for row in rows
        ],
    )


def _fire(known: schedules.Known, schedule: Schedule, rows: list[dict[str, Any]], *, by: str, pace: float) -> None:
    from celery_hardened.pipeline.beat_by_hand import ByHand

    done = 0

    def far(code: ExitCode, said: str) -> CommandError:
        on = words.utc(rows[done]["slot"])
        return CommandError(
            f"{said} {done} of {_amount(len(rows))} were fired, all before {on}. To go on: --from {on}",
            code,
        )

    hand = ByHand(known.hardening, by=by)
    try:
        with interrupt_held_back() as pressed, output.progress("firing", len(rows)) as more:
            for row in rows:
                if done and not pressed():
                    time.sleep(pace)
                if pressed():
                    raise far(ExitCode.INTERRUPTED, "stopped.")
                hand.backfill(schedule, row["slot"])
                row["fired"] = True
                done += 1
                more(1)
    except KeyboardInterrupt:
        raise far(ExitCode.INTERRUPTED, "stopped.") from None
    except NotFiredError as refused:
        raise far(ExitCode.FAILED, str(refused)) from refused
    except StoreUnavailableError as error:
        raise far(ExitCode.STORE_UNAVAILABLE, str(error)) from error
    finally:
        hand.close()


def _report(rows: list[dict[str, Any]], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        for row in rows:
            output.print_json({**row, "dry_run": dry_run})
    else:
        fired = len(rows) if dry_run else sum(row["fired"] for row in rows)
        click.echo(f"{'would fire' if dry_run else 'fired'} {fired} of {_amount(len(rows))}")


def _amount(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"
