"""``hardened schedule adopt``: go on where another scheduler stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_hardened.beat.course import course, upcoming
from celery_hardened.cli import output
from celery_hardened.cli.connect import once_more
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.cli.schedule import schedules, words

if TYPE_CHECKING:
    from celery_hardened.beat.adopt import LastRuns
    from celery_hardened.hardening import Hardening

#: --redbeat without a URL.
_OF_THE_APP = "of the app"


def _since(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    now = time.time()
    try:
        since = words.moment(value, now=now)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither an ISO date (UTC) nor a time ago (10s, 5m).", ctx, param
        ) from None
    if since > now:
        raise click.BadParameter(f"{words.utc(since)} is still to come.", ctx, param)
    return since


@click.command("adopt", cls=ReportingCommand)
@schedules.scheduler_option
@click.option(
    "--shelve",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="From Celery's own beat: its file, as given to --schedule.",
)
@click.option(
    "--redbeat",
    is_flag=False,
    flag_value=_OF_THE_APP,
    metavar="[URL]",
    help="From RedBeat: the Redis it is in; without URL, what redbeat_redis_url or the broker says.",
)
@click.option("--prefix", help="With --redbeat: redbeat_key_prefix, if the app does not say.")
@click.option(
    "--since",
    "fired_until",
    callback=_since,
    metavar="WHEN",
    help="The other scheduler has fired all that was due until then: an ISO date (UTC), or a time ago (10s, 5m).",
)
@click.option("--overwrite", is_flag=True, help="Also schedules that a beat of ours knows already.")
@click.option("--force", is_flag=True, help="Although RedBeat's lock is held.")
@click.option("--dry-run", is_flag=True, help="Say what would be; change nothing.")
@output.json_option
@click.pass_context
def adopt_schedules(
    ctx: click.Context,
    scheduler: str | None,
    shelve: Path | None,
    redbeat: str | None,
    prefix: str | None,
    fired_until: float | None,
    overwrite: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take over when another scheduler fired each schedule last, so that no slot is missed or fired twice.

    Stop the other scheduler first; start a beat of ours afterwards. With hardened-django nothing need be adopted:
    it goes on from the last runs in the tables.
    """
    from celery_hardened.beat.adopt import LastRuns, records_of

    if shelve is not None and redbeat is not None:
        raise click.UsageError("say --shelve or --redbeat, not both.")
    if shelve is None and redbeat is None and fired_until is None:
        raise click.UsageError("say what from: --shelve PATH, --redbeat, or --since WHEN alone.")
    known = schedules.read(ctx, scheduler)
    if not dry_run:
        _refuse_while_led(known.hardening)
    runs = LastRuns({}, {})
    if shelve is not None:
        runs = _of_shelve(shelve)
    elif redbeat is not None:
        runs = _of_redbeat(known.hardening, redbeat, prefix)
        if runs.locked and not force and not dry_run:
            raise CommandError(
                "RedBeat's lock is held: a beat of its runs still, or was killed and the lock has not run out. Stop "
                "it; if none runs, say --force. Nothing was done."
            )
    usable = [one for name, one in known.schedules.items() if name not in known.problems]
    records = records_of(usable, runs.at, since=fired_until, now=time.time())
    texts = {name: record.text() for name, record in records.items()}
    kept = _kept(known.hardening, texts, overwrite=overwrite, dry_run=dry_run)
    rows = [_row(known, name, runs, fired_until, texts, kept) for name in _all(known, runs)]
    _print(ctx, known, rows, as_json=as_json, dry_run=dry_run)
    if any(row["outcome"] in ("problem", "not_here") for row in rows):
        raise CommandError("not all of them could be adopted.", ExitCode.FAILED)


def _refuse_while_led(hardening: Hardening) -> None:
    from celery_hardened.beat.leader_store import LeaderStore
    from celery_hardened.beat.names import Keys

    leader = once_more(LeaderStore(hardening.redis, Keys(hardening.prefix), ttl=1.0).read)
    if leader.leads:
        raise CommandError(
            f"a beat leads ({leader.identity.get('host')}, pid {leader.identity.get('pid')}): what it decides would be "
            f"lost. Stop it, adopt, and start it again. Nothing was done."
        )


def _of_shelve(path: Path) -> LastRuns:
    from celery_hardened.beat.adopt import from_shelve

    return from_shelve(path)


def _of_redbeat(hardening: Hardening, url: str, prefix: str | None) -> LastRuns:
    from redis import Redis

    from celery_hardened.beat.adopt import from_redbeat

    conf = hardening.app.conf

    def of(name: str) -> Any:
        return conf.first(name, name.upper())

    said = prefix if prefix is not None else of("redbeat_key_prefix") or "redbeat:"
    lock = of("redbeat_lock_key")
    if lock and not lock.startswith(said):
        lock = said + lock
    own = of("redbeat_redis_url") if url == _OF_THE_APP else url
    if own is None:
        return once_more(lambda: from_redbeat(_broker(hardening), prefix=said, lock_key=lock))
    try:
        client = Redis.from_url(own)
    except ValueError as problem:
        raise CommandError(f"{own!r} is no URL of a Redis: {problem}", ExitCode.USAGE) from problem
    try:
        return once_more(lambda: from_redbeat(client, prefix=said, lock_key=lock))
    finally:
        client.close()


def _broker(hardening: Hardening) -> Any:
    broker = hardening.broker_redis
    if broker is None:
        raise CommandError(
            "RedBeat's Redis is not known: the broker is none, and redbeat_redis_url is not set. Say --redbeat URL.",
            ExitCode.USAGE,
        )
    return broker


def _kept(hardening: Hardening, texts: Mapping[str, str], *, overwrite: bool, dry_run: bool) -> set[str]:
    """Write them; the names that have the given record now, or would have."""
    from celery_hardened.beat.store import LedError

    store = schedules.beat_store(hardening)
    if dry_run:
        there = once_more(store.records)
        return {name for name in texts if overwrite or name not in there}
    try:
        return set(once_more(lambda: store.adopt(texts, overwrite=overwrite)))
    except LedError:
        raise CommandError("a beat has begun to lead meanwhile. Stop it, and adopt again with --overwrite.") from None


def _all(known: schedules.Known, runs: LastRuns) -> list[str]:
    theirs = [*runs.at, *runs.unknown]
    return [*known.names, *(name for name in theirs if name not in known.schedules and name not in known.problems)]


def _row(
    known: schedules.Known, name: str, runs: LastRuns, since: float | None, texts: Mapping[str, str], kept: set[str]
) -> dict[str, Any]:
    last = max((at for at in (runs.at.get(name), since) if at is not None), default=None)
    said: dict[str, Any] = {"name": name, "last_run": last, "next": None, "outcome": "adopted", "why": None}
    if name in known.problems:
        said |= {"outcome": "problem", "why": known.problems[name]}
    elif name not in known.schedules:
        said |= {
            "outcome": "not_here",
            "why": "no schedule of this name is in the scheduler that is adopted to; put it there, or forget it",
        }
    elif name not in texts:
        said |= {"outcome": "new", "why": runs.unknown.get(name, "the other scheduler does not know it")}
    elif name not in kept:
        said |= {"outcome": "known", "why": "it has a record of our beats already; say --overwrite to replace it"}
    if name in texts and name in kept:
        now = time.time()
        schedule = known.schedules[name]
        found = course(schedule, texts[name], now)
        said["next"] = next(islice(upcoming(schedule, found, found.record.cursor), 1), None)
    return said


_OUTCOMES = {
    "adopted": "adopted",
    "new": "starts when a beat first sees it",
    "known": "left as it is",
    "problem": "CANNOT BE USED",
    "not_here": "NOT HERE",
}


def _print(
    ctx: click.Context, known: schedules.Known, rows: list[dict[str, Any]], *, as_json: bool, dry_run: bool
) -> None:
    if as_json:
        for row in rows:
            output.print_json({**row, "dry_run": dry_run})
        return
    if rows:
        cells = [
            (
                row["name"],
                words.utc(row["last_run"]),
                words.utc(row["next"]),
                _OUTCOMES[row["outcome"]] + (f": {row['why']}" if row["why"] else ""),
            )
            for row in rows
        ]
        output.print_table(ctx, ("NAME", "LAST RUN", "NEXT SLOT", "OUTCOME"), cells)
    count = sum(row["outcome"] == "adopted" for row in rows)
    amount = f"{count} of {len(known.names)} schedules"
    click.echo(f"would adopt {amount}" if dry_run else f"adopted {amount}")
