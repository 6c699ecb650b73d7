"""Which letters a command is about: the filters every ``dlq`` command shares."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any, get_args

import click

from celery_hardened.cli.text import date
from celery_hardened.dead_letter.contract import DeadLetterStore, Query, State
from celery_hardened.dead_letter.letter import REASONS

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def parse_moment(text: str, *, now: float) -> float:
    """Read a moment: an age before *now* (``90s``, ``2h``, ``3d``) or an ISO 8601 date, UTC unless it says otherwise.

    Raises:
        ValueError: It is neither.
    """
    if age := _AGE.fullmatch(text.strip()):
        return now - float(age[1]) * _UNITS[age[2]]
    # Python 3.10 does not read the Z.
    moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return parse_moment(value, now=time.time())
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither an ISO date (2026-01-31, 2026-01-31T12:00) nor an age (2h, 3d).", ctx, param
        ) from None


_OPTIONS = (
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    click.option("--task", help="Name of the task."),
    click.option("--queue", help="Queue the message was in."),
    click.option("--reason", type=click.Choice(REASONS), help="Why it became a dead letter."),
    click.option("--fingerprint", help="Letters of one cause; `dlq stats` lists them."),
    click.option("--error", help="Dotted name of the error's class, as `dlq list` prints it."),
    click.option("--state", type=click.Choice(get_args(State)), help="What became of it; without this, all open ones."),
    click.option(
        "--since", callback=_moment, metavar="WHEN", help="Stored at or after an ISO date (UTC) or age (2h, 3d)."
    ),
    click.option("--until", callback=_moment, metavar="WHEN", help="Stored at or before an ISO date (UTC) or age."),
)


def selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* the filter options; it receives one ``query``."""

    @functools.wraps(command)
    def with_query(*args: Any, ids: tuple[str, ...], error: str | None, **rest: Any) -> Any:
        filters = {
            name: rest.pop(name) for name in ("task", "queue", "reason", "fingerprint", "state", "since", "until")
        }
        return command(*args, query=Query(ids=ids, error_type=error, **filters), **rest)

    decorated: Callable[..., Any] = with_query
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def require_selection(query: Query, *, everything: bool) -> None:
    """Refuse to act on every letter because somebody forgot the filter, and ``--all`` beside one."""
    if query == Query() and not everything:
        raise click.UsageError("name letters by id or by a filter, or say --all to mean every open letter.")
    if query != Query() and everything:
        raise click.UsageError("--all means every open letter; leave it out when you name ids or a filter.")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The letters a command is about."""

    ids: list[str]
    """Oldest first."""

    skipped: list[str]
    """A sentence for each letter that was named by id but is closed, or excluded by a filter."""


def chosen(store: DeadLetterStore, query: Query) -> Chosen:
    """What *query* selects now.

    Raises:
        DeadLetterNotFoundError: A letter named by id does not exist.
    """
    ids = list(store.ids(query))
    found = set(ids)
    return Chosen(
        ids,
        [
            f"letter {letter_id!r} is {store.get(letter_id).state} and not selected; it was left as it is."
            for letter_id in dict.fromkeys(query.ids)
            if letter_id not in found
        ],
    )


def described(query: Query) -> str:
    """The filters of *query*, for people: ``task=shop.charge, since=2026-01-31T12:00:00Z``, or ``3 by their ids``."""
    parts = [f"{len(query.ids)} by {'its id' if len(query.ids) == 1 else 'their ids'}"] if query.ids else []
    said = {f.name: getattr(query, f.name) for f in fields(query) if f.name != "ids"}
    said |= {name: date(moment) for name in ("since", "until") if (moment := said[name]) is not None}
    parts += [f"{name}={value}" for name, value in said.items() if value is not None]
    return ", ".join(parts) or "every open letter"
