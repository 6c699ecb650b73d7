"""What Redis has of some schedules and of who leads, for one page: one round trip."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from celery_hardened.beat.leader_store import LEADER_ANSWERS, LeaderRecord, ask_who_leads, leader_told
from celery_hardened.beat.names import Keys
from celery_hardened.beat.skip import Skip
from celery_hardened.beat.steps import decoded, encoded
from celery_hardened.beat.store import KnownProblem, Pause, pause_of, problem_of
from celery_hardened.redis_connection import answered


@dataclass(frozen=True, slots=True)
class Look:
    """All by the name of the schedule; a name that nothing is known of is in none."""

    leader: LeaderRecord | None = None
    records: Mapping[str, str] = field(default_factory=dict)
    paused: Mapping[str, Pause] = field(default_factory=dict)
    """The pauses that have not ended."""

    skips: Mapping[str, Skip] = field(default_factory=dict)
    """Slots to be passed over, also such as are decided by now."""

    problems: Mapping[str, KnownProblem] = field(default_factory=dict)
    last: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The latest line of the history."""

    running: Mapping[str, str] = field(default_factory=dict)
    """The task that holds the schedule's window; only a schedule that may not overlap has one."""


def look(client: Redis, keys: Keys, names: Sequence[str]) -> Look:
    """Ask for *names*, some hundreds at most.

    Raises:
        StoreUnavailableError: Redis does not answer.
    """
    fields = [encoded(name) for name in names]
    # No transaction: a window lies on another slot of a cluster, and a page need not be of one instant.
    with answered("reading how schedules stand"), client.pipeline(transaction=False) as pipe:
        ask_who_leads(pipe, keys)
        if fields:
            for key in (keys.records, keys.paused, keys.skips, keys.problems):
                pipe.hmget(key, fields)
        for name in names:
            pipe.lindex(encoded(keys.history(name)), 0)
            pipe.hget(encoded(keys.window(name)), "owner")
        answers: list[Any] = pipe.execute()
    leader = leader_told(answers[:LEADER_ANSWERS])
    if not fields:
        return Look(leader)
    records, paused, skips, problems, *each = answers[LEADER_ANSWERS:]
    pauses = {name: pause_of(value) for name, value in _there(names, paused)}
    lines = {name: _object(value) for name, value in _there(names, each[0::2])}
    return Look(
        leader=leader,
        records={name: decoded(value) for name, value in _there(names, records)},
        paused={name: one for name, one in pauses.items() if one.until is None or one.until > leader.server},
        skips={name: skip for name, value in _there(names, skips) if (skip := Skip.parse(value)) is not None},
        problems={name: problem_of(value) for name, value in _there(names, problems)},
        last={name: line for name, line in lines.items() if line},
        running={name: decoded(value) for name, value in _there(names, each[1::2])},
    )


def _there(names: Sequence[str], values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in zip(names, values, strict=True) if value]


def _object(line: bytes) -> dict[str, Any]:
    try:
        read = json.loads(line)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
