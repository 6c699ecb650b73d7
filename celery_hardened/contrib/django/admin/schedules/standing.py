"""How the schedules of one page stand: what the tables say, joined with what Redis has."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from celery import Celery

from celery_hardened.beat.course import course, overdue, upcoming, zone_read_in
from celery_hardened.beat.leader_store import own_connection
from celery_hardened.beat.leader_words import named
from celery_hardened.beat.look import Look, look
from celery_hardened.beat.names import Keys
from celery_hardened.beat.preview import Line, preview
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.skip import Skip
from celery_hardened.beat.slots import Between, Once
from celery_hardened.beat.store import Pause
from celery_hardened.contrib.django.schedules.reading import Reading
from celery_hardened.contrib.django.schedules.rows import Row
from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.beat import policy_of
from celery_hardened.pipeline.beat_refusal import refusal_of

#: Seconds that a page waits for Redis, once to connect and once for the answer.
PATIENCE = 1.0

#: Slots of one schedule in the list, and on its own page.
NEXT, PREVIEW = 3, 12

#: How far the preview looks. The rarest crontab, of a 29th of February, may come after eight years.
_AHEAD = 9 * 366 * 86_400.0

#: Reasons of ``Record.passed`` that mean: no beat could fire it in time.
MISSED = ("coalesced", "expired", "skipped", "beyond_max_catchup")


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one schedule. What Redis did not say is empty."""

    next: Sequence[Line] = ()
    """In the schedule's zone."""

    utc: Sequence[Line] = ()
    """The same slots in UTC."""

    zone: str = ""
    last_slot: Line | None = None
    outcome: str = ""
    """Of the latest line of the history."""

    task_id: str = ""
    """The task of that line, if it has one."""

    missed: int | None = None
    skipped: int | None = None
    overdue: int = 0
    running: str = ""
    may_overlap: bool = True
    paused: Pause | None = None
    skip: Skip | None = None
    """Of a slot that is still to come."""

    problem: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Of all schedules of a page."""

    leader: str = ""
    """``host (pid 12)``; empty: none leads, or nobody knows."""

    trouble: str = ""
    """Why nothing is known of Redis; empty: it has answered."""

    standings: Mapping[int, Standing] = field(default_factory=dict)
    """By primary key."""


def page_of(app: Celery, rows: Mapping[int, Row]) -> Page:
    """How *rows* stand. Asks Redis once; raises nothing because of Redis or of one row."""
    try:
        hardening = Hardening.expect(app)
        # A web process may have imported no task yet, and a schedule of an unknown one would be called unusable.
        app.loader.import_default_modules()
        reading = Reading(app, policy_of(hardening.settings))
        names = [row.name for row in rows.values()]
        found, trouble = asked(hardening, names)
    except ConfigurationError as problem:
        return Page(trouble=str(problem))
    now = time.time()
    leader = ""
    if found.leader is not None and found.leader.leads:
        leader = named(found.leader.identity) or "a beat that does not say its name"
    return Page(leader, trouble, {pk: _standing(hardening, reading, row, found, now) for pk, row in rows.items()})


def preview_of(app: Celery, row: Row) -> tuple[Sequence[Line], str]:
    """The coming slots of *row* with what the clock does to them, and what somebody has said of them; and, if there
    are none, why."""
    try:
        hardening = Hardening.expect(app)
        schedule = Reading(app, policy_of(hardening.settings)).schedule_of(row, time.time())
        if schedule is None:
            return (), "This task was to run once, and has run."
        if isinstance(schedule, Problem):
            return (), f"This schedule cannot be used: {schedule.text}"
        found, trouble = asked(hardening, [row.name])
        now = round(time.time(), 3)
        stands = course(schedule, found.records.get(row.name), now)
        if not stands.anchored:
            return (), trouble or "Its slots are counted from when a beat first sees it."
        slots = Between(schedule.when.slots(stands.record.anchor), schedule.start, schedule.end)
        most = 1 if schedule.one_off else PREVIEW
        lines = preview(slots, now, now + _AHEAD, zone=zone_read_in(schedule.when, app.timezone), most=most)
    except ConfigurationError as problem:
        return (), str(problem)
    pause, skip = found.paused.get(row.name), found.skips.get(row.name)
    return [_noted(line, pause, skip) for line in lines], "" if lines else "It has no slots to come."


def _noted(line: Line, pause: Pause | None, skip: Skip | None) -> Line:
    """*line*, with why it is not fired."""
    if not line.due:
        return line
    notes = [line.note] if line.note else []
    if pause is not None and (pause.until is None or line.at < pause.until):
        notes.append(f"paused by {pause.by}: {pause.why}")
    if skip is not None and skip.slot == line.at:
        notes.append(f"skipped by {skip.by}: {skip.why}")
    return replace(line, note="; ".join(notes))


def asked(hardening: Hardening, names: Sequence[str]) -> tuple[Look, str]:
    """What Redis has of schedules; and why it has nothing to say, if it does not answer a page in time."""
    client = own_connection(hardening.redis, timeout=PATIENCE, tries=1)
    try:
        return look(client, Keys(hardening.prefix), names), ""
    except StoreUnavailableError as problem:
        return Look(), f"{problem}".rstrip(".") + "."
    finally:
        client.close()
        client.connection_pool.disconnect()


def _standing(hardening: Hardening, reading: Reading, row: Row, found: Look, now: float) -> Standing:
    known = found.problems.get(row.name)
    history = found.last.get(row.name, {})
    skip = found.skips.get(row.name)
    base = Standing(
        outcome=str(history.get("outcome", "")),
        task_id=str(history.get("id") or ""),
        running=found.running.get(row.name, ""),
        paused=found.paused.get(row.name),
        skip=skip if skip is not None and skip.stands(found.records.get(row.name)) else None,
        problem=known.text if known else "",
    )
    schedule = reading.schedule_of(row, now)
    if schedule is None:
        return base
    if isinstance(schedule, Problem):
        return replace(base, problem=schedule.text)
    try:
        return _timed(hardening, schedule, found, now, base)
    except Exception as problem:  # noqa: BLE001 - one row must not fail the page
        return replace(base, problem=base.problem or f"its next slot cannot be found ({type(problem).__name__}).")


def _timed(hardening: Hardening, schedule: Schedule, found: Look, now: float, base: Standing) -> Standing:
    text = found.records.get(schedule.name)
    stands = course(schedule, text, now)
    zone = zone_read_in(schedule.when, hardening.app.timezone)
    slots = list(islice(upcoming(schedule, stands, now), NEXT))
    late = overdue(schedule, stands, now) if stands.begun else None
    record = stands.record
    passed: Mapping[str, Any] = record.passed
    missed = sum(passed.get(reason, 0) for reason in MISSED)
    return replace(
        base,
        next=[line_of(slot, zone) for slot in slots],
        utc=[line_of(slot, timezone.utc) for slot in slots],
        zone=str(zone),
        last_slot=None if record.last_slot is None else line_of(record.last_slot, zone),
        missed=missed if text else None,
        skipped=sum(passed.values()) - missed if text else None,
        overdue=late[0] if late else 0,
        may_overlap=schedule.policy.overlap == "allow",
        problem=base.problem or refusal_of(schedule, hardening) or "",
    )


def line_of(at: float, zone: Any) -> Line:
    """*at* in *zone*, as the preview tells it."""
    (line,) = [one for one in preview(Once(at), at, at + 0.001, zone=zone, most=1) if one.due]
    return line


def utc(at: float) -> str:
    """*at* in a sentence."""
    try:
        return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # the command line takes any duration
        return "a time beyond the year 9999"
