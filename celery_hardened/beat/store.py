"""Where the records of schedules are, and the one step that moves a record and sends its message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.steps import (
    Claim,
    Outgoing,
    StepToTake,
    Taken,
    all_taken,
    decoded,
    encoded,
    milliseconds,
    readable,
    taken,
    told,
)
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Argument, Script

__all__ = [
    "BeatStore",
    "KnownProblem",
    "LedError",
    "NotLeaderError",
    "Outgoing",
    "Pause",
    "Revoke",
    "StepToTake",
    "Taken",
]

#: How long records, histories and problems outlive the last beat.
TTL = 90 * 86_400.0

#: Tasks to be revoked that are kept at most, the latest, and for how long.
MAX_REVOKES = 10_000
REVOKE_TTL = 86_400.0

#: Fields, names or steps that go over the wire together where a caller gives any number of them.
_PAGE = 1000


class NotLeaderError(Exception):
    """Another beat leads, or none does: nothing was changed."""


class LedError(Exception):
    """A beat leads: nothing was changed."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a schedule, why, when, and until when (``None``: until it is resumed). Seconds since the epoch."""

    by: str
    why: str
    at: float
    until: float | None


@dataclass(frozen=True, slots=True)
class KnownProblem:
    """Why a schedule cannot be used, and since when."""

    text: str
    since: float


@dataclass(frozen=True, slots=True)
class Revoke:
    """A task that a later run of its schedule cancels or terminates."""

    id: str
    terminate: bool
    entry: bytes
    """As it is kept."""


class BeatStore:
    """Records, histories, pauses and problems of schedules in Redis. May be shared by threads.

    Args:
        history: Lines kept of each schedule; 0: none.

    Every method raises ``StoreUnavailableError`` if Redis does not answer, or refuses (full, a replica).
    """

    def __init__(self, client: Redis, keys: Keys, *, history: int) -> None:
        self._client = client
        self._keys = keys
        self._shared: list[Argument] = [max(0, history), milliseconds(TTL), MAX_REVOKES, milliseconds(REVOKE_TTL)]
        self._fire = self._script("fenced", "steps", "fire", operation="firing schedules")
        self._trigger = self._script("steps", "trigger", operation="triggering a schedule")
        self._triggered = self._script("steps", "triggered", operation="settling a run by hand")
        self._problems = self._script("fenced", "problems", operation="noting problems of schedules")
        self._revokes = self._script("fenced", "revokes", operation="reading tasks to revoke")
        self._revoked = self._script("fenced", "revoked", operation="removing tasks that were revoked")
        self._forget = self._script("fenced", "forget", operation="forgetting schedules")
        self._pause = self._script("pause", operation="pausing a schedule")
        self._resume = self._script("resume", operation="resuming a schedule")
        self._adopt = self._script("adopt", operation="adopting records of schedules")

    def _script(self, *names: str, operation: str) -> Script:
        return Script(self._client, str(__package__), *names, operation=operation)

    # --- firing -------------------------------------------------------------------------------------------

    def take(self, owner: str, steps: Sequence[StepToTake]) -> list[Taken]:
        """Take *steps*, some hundreds at most, in one round trip. Each is taken whole or not at all, whatever
        becomes of the others. The same call again does nothing more, and answers the same.
        A malformed one has failed.

        With no steps, the records are kept alive: once a day suffices.

        Raises:
            NotLeaderError: *owner* does not lead.
        """
        args: list[Argument] = [owner, *self._shared]
        malformed: dict[int, Taken] = {}
        for index, step in enumerate(steps):
            try:
                args += told(step)
            except ValueError as problem:
                malformed[index] = Taken("failed", trouble=str(problem))
        found = all_taken(self._led(self._fire(keys=self._step_keys(self._keys.leader), args=args)))
        for index, answer in malformed.items():  # in order, so each gets its own place
            found.insert(index, answer)
        return found

    def trigger(self, step: StepToTake, *, force: bool = False) -> Taken:
        """Fire by hand: no leader is asked, no record moves, *old* and *new* are not used.

        For an hour another call with its task id does nothing more (``done before``). A call that the client
        repeats, because its answer was lost, answers as it did.

        Args:
            force: Fire beside a run that is not over, which keeps its window.

        Raises:
            ValueError: It has no task id, or heeds overlaps and has no window.
        """
        if not step.task_id:
            raise ValueError("a run by hand needs a task id")
        call = f"{int(force)}{uuid4().hex}"
        args: list[Argument] = [call, *self._shared, *told(replace(step, old="", new="1"))]
        letter, text, trouble = self._trigger(keys=self._step_keys(self._mark(step.task_id)), args=args)
        return taken(letter.decode(), text, trouble)

    def triggered(self, step: StepToTake, claim: Claim) -> None:
        """What became of a step by hand whose claim was ``made``: ``confirmed``, or ``given up``. Then the history
        says no more that it was sent, its window is as it was before, and another call is a new one."""
        over = replace(step, claim=claim, window=self._keys.window(step.name), old="", new="1", messages=())
        args: list[Argument] = ["", *self._shared, *told(over)]
        self._triggered(keys=self._step_keys(self._mark(step.task_id)), args=args)

    def _mark(self, task_id: str) -> str:
        return f"{self._keys.prefix}:{{beat}}:triggered:{task_id}"

    def _step_keys(self, first: str) -> list[str]:
        keys = self._keys
        return [first, keys.records, keys.paused, keys.revoke, keys.history(""), keys.skips, keys.replaces]

    # --- reading ------------------------------------------------------------------------------------------

    def records(self) -> dict[str, str]:
        """All records by schedule, read in pages."""
        found: dict[str, str] = {}
        with answered("reading records of schedules"):
            for name, record in self._client.hscan_iter(self._keys.records, count=_PAGE):
                found[decoded(name)] = decoded(record)
        return found

    def record(self, name: str) -> str | None:
        with answered("reading the record of a schedule"):
            found = self._client.hget(self._keys.records, encoded(name))
        return None if found is None else decoded(found)

    def history(self, name: str, most: int) -> list[dict[str, Any]]:
        """The latest *most* lines, newest first."""
        if most <= 0:
            return []
        with answered("reading the history of a schedule"):
            lines = self._client.lrange(encoded(self._keys.history(name)), 0, most - 1)
        return [line for line in map(_json, lines) if line is not None]

    # --- pauses -------------------------------------------------------------------------------------------

    def pause(self, name: str, *, by: str, why: str, until: float | None) -> None:
        """Hold *name* up, as from now; a pause that it has is replaced.

        Args:
            until: Seconds since the epoch by the server's clock; ``None``: until it is resumed.
        """
        at = self._now()
        ends = 0 if until is None else max(1, milliseconds(until))
        text = json.dumps({"by": by, "why": why, "at": at, "until": until})
        self._pause(keys=[self._keys.paused, self._keys.stamp], args=[encoded(name), ends, text])

    def resume(self, name: str) -> None:
        self._resume(keys=[self._keys.paused, self._keys.stamp], args=[encoded(name)])

    def paused(self) -> dict[str, Pause]:
        """The pauses that have not ended."""
        with answered("reading pauses of schedules"):
            found = self._client.hgetall(self._keys.paused)
        if not found:
            return {}
        now = self._now()
        pauses = {decoded(name): pause_of(value) for name, value in found.items()}
        return {name: pause for name, pause in pauses.items() if pause.until is None or pause.until > now}

    def stamp(self) -> int:
        """A number that grows with each change by a tool."""
        with answered("reading the stamp of schedules"):
            return int(self._client.get(self._keys.stamp) or 0)

    def _now(self) -> float:
        with answered("reading the server's clock"):
            seconds, micros = self._client.time()
        return round(seconds + micros / 1_000_000, 3)

    # --- problems and revokes -----------------------------------------------------------------------------

    def set_problems(self, owner: str, problems: Mapping[str, str | None]) -> None:
        """Say what is wrong with schedules, or (``None``) that nothing is any more.

        Raises:
            NotLeaderError: *owner* does not lead.
        """
        for page in _pages(problems):
            args: list[Argument] = [owner, milliseconds(TTL)]
            for name in page:
                args += [encoded(name), encoded(problems[name] or "")]
            self._led(self._problems(keys=[self._keys.leader, self._keys.problems], args=args))

    def problems(self) -> dict[str, KnownProblem]:
        """What is wrong, by schedule."""
        found = {}
        with answered("reading problems of schedules"):
            for name, value in self._client.hscan_iter(self._keys.problems, count=_PAGE):
                found[decoded(name)] = problem_of(value)
        return found

    def revokes(self, owner: str, most: int) -> list[Revoke]:
        """Tasks to be revoked, oldest first. They stay until ``revoked``: at least once.

        Raises:
            NotLeaderError: *owner* does not lead.
        """
        entries = self._led(self._revokes(keys=[self._keys.leader, self._keys.revoke], args=[owner, most]))
        found = [(entry, _json(entry)) for entry in entries]
        return [
            Revoke(str(read.get("id", "")), read.get("terminate") is True, entry) if read else Revoke("", False, entry)
            for entry, read in found
        ]

    def revoked(self, owner: str, revokes: Sequence[Revoke]) -> None:
        """Their revokes were sent.

        Raises:
            NotLeaderError: *owner* does not lead.
        """
        args: list[Argument] = [owner, *(revoke.entry for revoke in revokes)]
        self._led(self._revoked(keys=[self._keys.leader, self._keys.revoke], args=args))

    # --- schedules that come and go -----------------------------------------------------------------------

    def forget(self, owner: str, names: Iterable[str]) -> None:
        """Remove records, histories and problems of schedules that are gone. Pauses stay until they are resumed.

        Raises:
            NotLeaderError: *owner* does not lead.
        """
        keys = self._keys
        for page in _pages(names):
            args: list[Argument] = [owner, *map(encoded, page)]
            self._led(self._forget(keys=[keys.leader, keys.records, keys.problems, keys.history("")], args=args))

    def adopt(self, records: Mapping[str, str], *, overwrite: bool = False, force: bool = False) -> list[str]:
        """Write records that were made from another scheduler's state.

        Args:
            overwrite: Also where a schedule has a record.
            force: Also while a beat leads. It reads them when it next finds its own stale.

        Returns:
            The schedules that have the given record now.

        Raises:
            LedError: A beat leads. None of what was not written by then is.
        """
        written: list[str] = []
        keys = [self._keys.leader, self._keys.records, self._keys.stamp]
        for page in _pages(records):
            args: list[Argument] = [int(force), int(overwrite), milliseconds(TTL)]
            for name in page:
                args += [encoded(name), encoded(records[name])]
            answer = self._adopt(keys=keys, args=args)
            if answer is None:
                raise LedError("a beat leads")
            written += map(decoded, answer)
        return written

    @staticmethod
    def _led(answer: Any) -> Any:
        if answer is None:
            raise NotLeaderError("another beat leads, or none does")
        return answer


def pause_of(value: bytes | str) -> Pause:
    """A pause; one that nobody of ours wrote holds up too."""
    _, _, text = decoded(value).partition(" ")
    read = _json(text) or {}
    at, until = read.get("at"), read.get("until")
    return Pause(
        by=readable(read.get("by", "")),
        why=readable(read.get("why", "")),
        at=float(at) if isinstance(at, (int, float)) else 0.0,
        until=float(until) if isinstance(until, (int, float)) else None,
    )


def problem_of(value: bytes | str) -> KnownProblem:
    """A problem, as it is kept."""
    since, _, text = decoded(value).partition(" ")
    return KnownProblem(readable(text), int(since) / 1000 if since.isdecimal() else 0.0)


def _pages(names: Iterable[str]) -> list[list[str]]:
    every = list(names)
    return [every[first : first + _PAGE] for first in range(0, len(every), _PAGE)]


def _json(line: bytes | str) -> dict[str, Any] | None:
    try:
        read = json.loads(line)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None
