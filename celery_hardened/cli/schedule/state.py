"""What is known of each schedule: what the source says, joined with what Redis has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery_hardened.beat.course import course, overdue, upcoming
from celery_hardened.cli.connect import once_more
from celery_hardened.cli.schedule import words
from celery_hardened.cli.schedule.schedules import Known, beat_store

if TYPE_CHECKING:
    from celery_hardened.beat.skip import Skip
    from celery_hardened.beat.store import KnownProblem, Pause

#: Windows asked about in one round trip.
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Kept:
    """What Redis has of all schedules."""

    records: Mapping[str, str]
    paused: Mapping[str, Pause]
    problems: Mapping[str, KnownProblem]
    skips: Mapping[str, Skip]
    """Those whose slots are not decided yet."""


def kept(known: Known) -> Kept:
    from celery_hardened.beat.names import Keys
    from celery_hardened.beat.skip_store import SkipStore

    store = beat_store(known.hardening)
    skips = SkipStore(known.hardening.redis, Keys(known.hardening.prefix))

    def read() -> Kept:
        records, skipped = store.records(), skips.skips()
        standing = {name: skip for name, skip in skipped.items() if skip.stands(records.get(name))}
        return Kept(records, store.paused(), store.problems(), standing)

    return once_more(read)


def running(known: Known, names: Iterable[str]) -> dict[str, str]:
    """The task that holds each schedule's window: what may not overlap with the next run."""
    from celery_hardened.beat.names import Keys
    from celery_hardened.redis_connection import answered

    keys, client = Keys(known.hardening.prefix), known.hardening.redis
    held = [name for name in names if known.schedules[name].policy.overlap != "allow"]
    owners: dict[str, str] = {}
    for at in range(0, len(held), _PAGE):
        page = held[at : at + _PAGE]
        with answered("reading which schedules run"), client.pipeline(transaction=False) as pipe:
            for name in page:
                pipe.hget(keys.window(name), "owner")
            found = pipe.execute()
        owners |= {name: owner.decode("utf-8", "replace") for name, owner in zip(page, found, strict=True) if owner}
    return owners


def details(known: Known, wanted: Iterable[str]) -> list[dict[str, Any]]:
    """One JSON object a schedule."""
    names = list(wanted)
    redis = kept(known)
    runs = running(known, [name for name in names if name in known.schedules])
    now = time.time()
    return [_detail(known, redis, name, runs.get(name), now) for name in names]


def _detail(known: Known, redis: Kept, name: str, holder: str | None, now: float) -> dict[str, Any]:
    schedule = known.schedules.get(name)
    problem, since = known.problems.get(name), None
    if name in redis.problems:
        problem, since = problem or redis.problems[name].text, redis.problems[name].since
    pause = redis.paused.get(name)
    said: dict[str, Any] = {
        "name": name,
        "task": schedule.task if schedule else None,
        "timing": words.timing(schedule.when) if schedule else None,
        "zone": None,
        "next": None,
        "latest": None,
        "cursor": None,
        "last_slot": None,
        "last_fired": None,
        "fired": 0,
        "not_fired": {},
        "waiting": None,
        "overdue": 0,
        "done": False,
        "paused": asdict(pause) if pause else None,
        "skipped": asdict(skip) if (skip := redis.skips.get(name)) else None,
        "problem": problem,
        "problem_since": since,
        "running": holder,
        "policy": asdict(schedule.policy) if schedule else None,
    }
    if schedule is None:
        return said
    said["zone"] = words.zone_name_of(schedule.when, known.hardening.app.timezone)
    try:
        found = course(schedule, redis.records.get(name), now)
        late = overdue(schedule, found, now) if found.begun else None
        said["next"] = next(islice(upcoming(schedule, found, now), 1), None)
    except Exception as trouble:  # noqa: BLE001 - a class of the user's own may raise anything
        said["problem"] = problem or f"its next slot cannot be found ({type(trouble).__name__}: {trouble})."
        return said
    record = found.record
    if said["next"] is not None:
        said["latest"] = round(said["next"] + schedule.policy.jitter, 3)
    said |= {
        "cursor": record.cursor if found.begun else None,
        "last_slot": record.last_slot,
        "last_fired": record.last_fired,
        "fired": record.fired,
        "not_fired": dict(record.passed),
        "waiting": record.buffered,
        "overdue": late[0] if late else 0,
        "done": record.done,
    }
    return said
