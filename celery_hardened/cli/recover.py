"""``hardened recover``: put back what workers that ended uncleanly left behind in Redis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from celery_hardened.cli import output
from celery_hardened.cli.connect import hardening_of, once_more, whoami
from celery_hardened.cli.exit_codes import CommandError, ExitCode, ReportingCommand
from celery_hardened.cli.interrupt import interrupt_held_back
from celery_hardened.errors import DeadLetterError, StoreUnavailableError

if TYPE_CHECKING:
    from celery_hardened.hardening import Hardening
    from celery_hardened.transport.recover import Found, Recovery


@dataclass(slots=True)
class _Kind:
    """Messages in one place: how many there are, are meant, and were moved."""

    place: str
    found: int
    selected: int
    rest: str
    """What is to be said of those not selected."""
    step: Callable[[], Iterator[int]]
    """Does it; yields how many more are done."""
    moved: int = 0
    problems: list[str] = field(default_factory=list)


@click.command("recover", cls=ReportingCommand)
@click.option("--leases", is_flag=True, help="Also what stopped workers still hold; only when all of them are stopped.")
@click.option("--delayed", is_flag=True, help="Also messages that wait for their time; workers will wait instead.")
@click.option("--all", "everything", is_flag=True, help="Also from lists of consumers that seem to live.")
@click.option("--force", is_flag=True, help="With --leases: do it although workers seem to live.")
@click.option("--dry-run", is_flag=True, help="Say how many it would be; change nothing.")
@output.json_option
@click.pass_context
def recover(
    ctx: click.Context, leases: bool, delayed: bool, everything: bool, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Put back what workers left behind in Redis: after an unclean stop, and before a roll-back.

    Messages on their way to a worker go back into their queues, and items that
    are no messages become dead letters. Running hardened workers do both by
    themselves. It does the same whatever hardened_redis_delivery is.
    """
    if force and not leases:
        raise click.UsageError("--force is for --leases; lists of living consumers are taken with --all.")
    hardening = hardening_of(ctx)
    from celery_hardened.transport.recover import Recovery

    recovery = Recovery(hardening.app.connection_for_read(), prefix=hardening.settings.key_prefix)
    found = once_more(recovery.look)
    if leases and found.consumers and not force:
        raise CommandError(
            f"refused: hardened workers seem to run (consumers whose registration or lease has not run out: "
            f"{found.consumers}), and their tasks would run a second time. Stop them first; if they were killed, "
            f"wait {math.ceil(found.lasts)} s, or say --force. Nothing was done."
        )
    kinds = _kinds(hardening, recovery, found, leases=leases, delayed=delayed, everything=everything)
    if not dry_run:
        _run(ctx, kinds, as_json=as_json)
    _report(ctx, kinds, dry_run=dry_run, as_json=as_json)
    if problems := _problems(kinds):
        raise CommandError("\n".join(problems))


def _kinds(
    hardening: Hardening, recovery: Recovery, found: Found, *, leases: bool, delayed: bool, everything: bool
) -> dict[str, _Kind]:
    """In the order of their steps: what goes back last is taken first, and what was leased is the oldest."""
    lists = [one for one in found.own_lists if everything or not one.live]

    def empty_lists() -> Iterator[int]:
        for one in lists:
            yield recovery.empty(one, live=everything)

    malformed = _Kind("malformed items", found.malformed, found.malformed, "", lambda: iter(()))
    malformed.step = lambda: _bury(hardening, recovery, malformed.problems)
    return {
        "delayed": _Kind(
            "delayed messages",
            len(found.delayed),
            len(found.delayed) if delayed else 0,
            "wait for their time; --delayed takes them",
            lambda: recovery.put_back(found.delayed, started=False),
        ),
        "own_lists": _Kind(
            "consumers' own lists",
            sum(one.messages for one in found.own_lists),
            sum(one.messages for one in lists),
            "of consumers that seem to live; --all takes them",
            empty_lists,
        ),
        "leases": _Kind(
            "leases",
            len(found.leased),
            len(found.leased) if leases else 0,
            "held by workers, or put back by one when they run out; --leases takes them",
            lambda: recovery.put_back(found.leased, started=True),
        ),
        "malformed": malformed,
    }


def _bury(hardening: Hardening, recovery: Recovery, problems: list[str]) -> Iterator[int]:
    """Each becomes a dead letter, and is forgotten only then."""
    from celery_hardened.pipeline.delivery import bury_malformed

    refused: set[str] = set()
    while page := [one for one in recovery.scripts.malformed(100 + len(refused)) if one[0] not in refused]:
        for tag, queue, raw in page:
            try:
                bury_malformed(hardening, whoami(), tag, queue, raw)
            except DeadLetterError as error:
                problems.append(str(error))
                refused.add(tag)
                continue
            recovery.scripts.forget_malformed(tag)
            yield 1


def _run(ctx: click.Context, kinds: dict[str, _Kind], *, as_json: bool) -> None:
    """Step by step, so that an interruption or a lost server leaves every message in one place or the other."""
    selected = [kind for kind in kinds.values() if kind.selected]
    with (
        interrupt_held_back() as stopped,
        output.progress("recovering", sum(kind.selected for kind in selected)) as more,
    ):
        for kind in selected:
            try:
                for count in kind.step():
                    kind.moved += count
                    more(count)
                    if stopped():
                        _report(ctx, kinds, dry_run=False, as_json=as_json)
                        raise CommandError("stopped: the same command goes on with the rest.", ExitCode.INTERRUPTED)
            except StoreUnavailableError as error:
                _report(ctx, kinds, dry_run=False, as_json=as_json)
                raise CommandError(
                    f"{error} What was moved is moved; the same command goes on with the rest.",
                    ExitCode.STORE_UNAVAILABLE,
                ) from error


def _problems(kinds: dict[str, _Kind]) -> Iterable[str]:
    return [problem for kind in kinds.values() for problem in kind.problems]


def _report(ctx: click.Context, kinds: dict[str, _Kind], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        counts = {
            name: {"found": kind.found, "selected": kind.selected, "moved": kind.moved} for name, kind in kinds.items()
        }
        output.print_json({**counts, "problems": _problems(kinds), "dry_run": dry_run})
        return
    rows = []
    for kind in kinds.values():
        rest = kind.found - kind.selected
        moved = kind.selected if dry_run else kind.moved
        rows.append((kind.place, str(kind.found), str(moved), f"{rest} {kind.rest}" if rest else "-"))
    output.print_table(ctx, ("PLACE", "FOUND", "WOULD MOVE" if dry_run else "MOVED", "LEFT THERE"), rows)
