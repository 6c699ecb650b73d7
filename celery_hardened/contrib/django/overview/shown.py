"""Facts and problems as the template has them: words, and links to where they may be followed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final
from urllib.parse import urlencode

from celery_hardened.attendance.record import Present
from celery_hardened.beat.leader_words import named
from celery_hardened.contrib.django.overview.facts import OTHERS, Beats, Facts, Queues, Workers
from celery_hardened.contrib.django.overview.problems import Limits, Place, Problem, problems
from celery_hardened.contrib.django.overview.problems_of_workers import current
from celery_hardened.metrics.queue_reading import QueueReading
from celery_hardened.metrics.rules.worded import span

#: Rows of a table: of queues those in which most waits, of workers those that are gone or idle last.
MOST: Final = 200

#: Address of a place, with these filters; ``None``: whoever reads this may not go there.
Address = Callable[[Place, Mapping[str, str]], "str | None"]

_WORDS: Final = {"critical": "Critical", "warning": "Warning", "info": "Note"}
_LINKS: Final[Mapping[Place, str]] = {"letters": "Look at the dead letters", "schedules": "Look at the schedules"}


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """One problem."""

    key: str
    severity: str
    word: str
    what: str
    extent: str
    do: Sequence[tuple[bool, str]]
    """Parts, and whether each is a command or a name."""

    alert: str
    link: str | None
    link_text: str


def shown(facts: Facts, at: float, limits: Limits, address: Address) -> dict[str, Any]:
    """The context of the part of the page that refreshes."""
    found = [_problem(one, address) for one in problems(facts, limits)]
    queues = _queues(facts, limits, address) if facts.queues else []
    workers = _workers(facts.workers, limits) if facts.workers else []
    silent = facts.silent
    return {
        "problems": found,
        "said": _said(found),
        "queues": queues[:MOST],
        "more_queues": max(0, len(queues) - MOST),
        "broker": facts.queues and _totals(facts.queues),
        "queues_silent": facts.queues is None and "the broker" in silent,
        "unread": _unread(facts.queues) if facts.queues else [],
        "workers": workers[:MOST],
        "more_workers": max(0, len(workers) - MOST),
        "workers_known": facts.workers is not None,
        "redis_silent": facts.beats is None and "Redis" in silent,
        "beats": facts.beats and _beats(facts.beats),
        "schedules": facts.schedules,
        "schedules_link": address("schedules", {}),
        "missed": [(one, span(one.ago), address("schedules", {"q": one.schedule})) for one in facts.beats.missed[:20]]
        if facts.beats
        else [],
        "letters": facts.letters,
        "letters_oldest": span(facts.letters.oldest) if facts.letters and facts.letters.oldest is not None else "",
        "letters_of": _letters(facts, address),
        "letters_silent": facts.letters is None and "the store of dead letters" in silent,
        "letters_link": address("letters", {}),
        "read_at": datetime.fromtimestamp(at, timezone.utc),
    }


def _said(found: Sequence[ShownProblem]) -> str:
    """What is read out when it changes: no numbers that change by themselves."""
    if not found:
        return "No open problems."
    counted = Counter(one.word for one in found)
    parts = ", ".join(f"{counted[word]} {word.lower()}" for word in _WORDS.values() if counted[word])
    return f"{len(found)} open {'problem' if len(found) == 1 else 'problems'}: {parts}."


def _problem(one: Problem, address: Address) -> ShownProblem:
    link = address(one.place, one.subject) if one.place else None
    return ShownProblem(
        key=one.key,
        severity=one.severity,
        word=_WORDS[one.severity],
        what=one.what,
        extent=one.extent,
        do=[(bool(number % 2), part) for number, part in enumerate(one.do.split("`")) if part],
        alert=one.alert,
        link=link,
        link_text=_LINKS[one.place] if one.place else "",
    )


# --- queues ---------------------------------------------------------------------------------------------------------


def _queues(facts: Facts, limits: Limits, address: Address) -> list[dict[str, Any]]:
    queues = facts.queues
    assert queues is not None  # noqa: S101 - for the types
    held = _held(facts.workers, limits)
    rows = [
        {
            "name": name,
            "waiting": one.waiting,
            "oldest": _oldest(one),
            "in_flight": None if facts.workers is None else held[name],
            "takers": _takers(name, one, facts.workers, limits),
            "dead_letter_queue": queues.reading.dead_letter_queues.get(name),
            "letters": facts.letters.by_queue.get(name, 0) if facts.letters else None,
            "link": address("letters", {"queue": name}),
        }
        for name, one in queues.reading.queues.items()
    ]
    return sorted(rows, key=lambda row: (-row["waiting"], row["name"]))


def _held(workers: Workers | None, limits: Limits) -> Counter[str]:
    held: Counter[str] = Counter()
    for one in workers.present if workers else ():
        if one.silent < limits.pauses.silent:
            held.update(one.record.held)
    return held


def _takers(name: str, one: QueueReading, workers: Workers | None, limits: Limits) -> int | None:
    from celery_hardened.contrib.django.overview.problems_of_queues import taken_by

    return taken_by(name, one, workers, limits)


def _oldest(one: QueueReading) -> str:
    if not one.waiting:
        return ""
    return "" if one.oldest is None else span(one.oldest)


def _totals(queues: Queues) -> dict[str, Any]:
    reading = queues.reading
    return {
        "waiting": sum(one.waiting for one in reading.queues.values()),
        "unacked": reading.unacked,
        "delayed": reading.delayed,
        "tells_age": queues.kind == "redis",
        "dead_letter_queues": bool(reading.dead_letter_queues),
    }


def _unread(queues: Queues) -> list[tuple[str, str]]:
    missing = [name for name in queues.names if name not in queues.reading.queues]
    absent = queues.reading.exists
    return [(name, "does not exist yet" if absent.get(name) is False else "cannot be read") for name in missing]


# --- workers, beats, letters ----------------------------------------------------------------------------------------


def _workers(workers: Workers, limits: Limits) -> list[dict[str, Any]]:
    return [_worker(one, limits) for one in current(workers.present)]


def _worker(one: Present, limits: Limits) -> dict[str, Any]:
    record = one.record
    return {
        "name": record.name,
        "pid": record.pid,
        "state": _state(one, limits),
        "queues": ", ".join(record.queues),
        "held": sum(record.held.values()),
        "size": f"{record.pool} {record.concurrency}".strip(),
        "up": span(record.began + one.silent),
        "seen": "just now" if one.silent < 10 else f"{span(one.silent)} ago",
    }


def _state(one: Present, limits: Limits) -> str:
    record = one.record
    if one.silent >= limits.pauses.silent:
        return "says nothing"
    if record.stopping:
        return "is stopping"
    if record.tried is not None:
        return "connects to its broker"
    if record.turned + one.silent > limits.terms.thresholds.stale:
        return "hangs"
    if record.missing:
        return f"does not take from {', '.join(record.missing)}"
    if record.cancelled:
        return f"was told not to take from {', '.join(record.cancelled)}"
    return "takes messages" if record.queues else "takes from no queue"


def _beats(beats: Beats) -> dict[str, Any]:
    leader = beats.leader
    who = named(leader.identity) or "a beat that does not say its name"
    return {
        "leads": leader.leads,
        "ever": bool(leader.term),
        "who": who,
        "term": leader.term,
        "since": span(leader.server - leader.since) if leader.since else "",
        "tick": span(leader.server - leader.tick) if leader.tick else "",
        "records": beats.records,
        "unusable": beats.unusable,
        "missed_ever": beats.missed_ever,
        "partial": beats.partial,
    }


def _letters(facts: Facts, address: Address) -> list[tuple[str, int, int, str | None]]:
    """By queue: name, open ones, those of the last minutes, address of their list."""
    if facts.letters is None:
        return []
    recently = facts.letters.recently
    rows = [
        (name or "none", number, recently.get(name, 0), address("letters", queue_filter(name)))
        for name, number in facts.letters.by_queue.items()
    ]
    if OTHERS in recently:
        rows.append((OTHERS, 0, recently[OTHERS], address("letters", {})))
    return rows[:MOST]


def queue_filter(name: str) -> dict[str, str]:
    """What the list of dead letters is to be filtered by."""
    return {"queue": name} if name else {"none": "queue"}


def with_filters(url: str, filters: Mapping[str, str]) -> str:
    """*url*, a page's, with *filters* as its query."""
    return f"{url}?{urlencode(filters, errors='backslashreplace')}" if filters else url
