"""Rows of run history from what is told in Redis: lines of a schedule's history, and reports of workers. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from celery_hardened.beat.names import task_id_of
from celery_hardened.beat.run_report import RunReport, says_more
from celery_hardened.contrib.django.models import ScheduleRun

#: Characters of a name that fits into the table; PostgreSQL refuses a longer one.
NAME_MAX = 255

#: Whole numbers that fit.
_COUNT_MAX = 2**31 - 1

#: Outcomes of a line that stand for a run by hand, which was fired.
_BY_HAND = ("triggered", "backfilled")

#: Seconds by which the row that a report makes is older than any line about its slot, whatever clocks do.
_OLDER = 60.0

#: Columns that a line of the history fills.
OF_A_LINE = ("verdict", "decided", "first", "count", "missed", "by", "term", "task_id")

#: Columns that reports fill.
OF_REPORTS = ("outcome", "started", "ended", "duration", "attempts", "deaths", "worker", "error", "dead_letter")


def row_of_line(schedule: str, line: bytes | str) -> ScheduleRun | None:
    """The row of one line; ``None``: it is none that a beat has written, or its schedule's name does not fit."""
    try:
        said: Any = json.loads(line)
        outcome, at, slot = said["outcome"], said["at"], said["slot"]
        if not (isinstance(outcome, str) and outcome and _fits(schedule)):
            return None
        kind = outcome if outcome in _BY_HAND else "planned"
        task_id = _text(said.get("id"))
        first, term = said.get("first"), said.get("term")
        return ScheduleRun(
            identity=identity(schedule, slot, kind, task_id if kind == "triggered" else at),
            schedule=schedule,
            slot=moment(slot),
            kind=kind,
            verdict="fired" if kind != "planned" else outcome[:32],
            decided=moment(at),
            first=None if first is None else moment(first),
            count=_count(said.get("count"), least=1),
            missed=_count(said.get("missed")),
            by=_text(said.get("by")),
            term=term if type(term) is int and 0 <= term < 2**63 else None,
            task_id=task_id,
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, OSError, RecursionError):
        return None


def row_of_report(report: RunReport) -> ScheduleRun:
    """The row of a run of which no line is known: a line that comes later fills in the rest."""
    kind = "planned" if report.task_id == task_id_of(report.schedule, report.slot) else "triggered"
    return ScheduleRun(
        identity=identity(report.schedule, report.slot, kind, report.task_id),
        schedule=report.schedule,
        slot=moment(report.slot),
        kind=kind,
        verdict="fired",
        decided=moment(max(0.0, report.slot - _OLDER)),
        missed=_count(report.missed),
        task_id=report.task_id,
    )


def identity(schedule: str, slot: float, kind: str, which: object) -> str:
    """Digest of what one row is about. *which* tells runs by hand of one slot apart."""
    said = (schedule, round(slot * 1000), kind, "" if kind == "planned" else which)
    return hashlib.sha256(repr(said).encode("utf-8", "backslashreplace")).hexdigest()


def latest(rows: Iterable[ScheduleRun]) -> dict[str, ScheduleRun]:
    """By identity the one that was decided last: a slot that waited was fired, or not, later."""
    found: dict[str, ScheduleRun] = {}
    for row in rows:
        known = found.get(row.identity)
        if known is None or known.decided < row.decided:
            found[row.identity] = row
    return found


def take_in(row: ScheduleRun, report: RunReport) -> bool:
    """Put what *report* says into *row*; whether that has changed anything. A repeat does not."""
    before = [getattr(row, name) for name in OF_REPORTS]
    known = None if row.ended is None else row.ended.timestamp()
    if report.started is not None:
        started = moment(report.started)
        row.started = started if row.started is None else min(row.started, started)
        row.attempts = max(row.attempts, _count(report.attempt))
    lost = report.deaths + (report.outcome == "worker_lost")
    row.deaths = max(row.deaths, _count(lost))
    if says_more(report, outcome=row.outcome, letter=row.dead_letter, at=known):
        row.outcome = report.outcome[:32]
        row.ended = moment(report.at)
        row.duration = report.runtime
        row.worker = _text(report.worker)
        row.error = _text(report.error)
        row.dead_letter = _text(report.letter)
    return before != [getattr(row, name) for name in OF_REPORTS]


def by_task(reports: Iterable[RunReport]) -> Mapping[str, list[RunReport]]:
    """Reports of each task, in the order in which the deliveries ended.

    Without those that no database takes: ids and names are the word of whoever has sent a message, and one that is
    refused would keep all others from being copied, for ever.
    """
    found: dict[str, list[RunReport]] = {}
    for report in sorted(reports, key=lambda one: one.at):
        if not (_fits(report.task_id) and _fits(report.schedule)):
            continue
        found.setdefault(report.task_id, []).append(report)
    return found


def moment(at: float) -> datetime:
    """Raises ``ValueError`` or ``OverflowError`` if the calendar does not go so far."""
    return datetime.fromtimestamp(at, timezone.utc)


def _fits(name: str) -> bool:
    return bool(name) and _text(name) == name


def _text(value: object) -> str:
    """What a database takes: no zero byte, no lone surrogate, not too long."""
    text = value if isinstance(value, str) else ""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")[:NAME_MAX]


def _count(value: object, *, least: int = 0) -> int:
    return min(value, _COUNT_MAX) if type(value) is int and value >= least else least
