"""A letter as the admin's pages show it: what they may tell, decoded and cut. Escaping is the templates'."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from celery_hardened.cli import record, text
from celery_hardened.contrib.django.dead_letters.forms import GROUPED
from celery_hardened.dead_letter.contract import OPEN, DeadLetterStore, Query, Stats, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.marks import Marks

#: Groups of each kind on the overview; each of the first kind costs a call for its newest letter.
GROUPS = 20

#: Letters of the same fingerprint that a letter's page names.
SIBLINGS = 10

#: Characters of one value; a browser chokes on megabytes.
_VALUE_MAX = 100_000

_FACTS = (
    ("task", "Task"),
    ("task_id", "Task id"),
    ("root_id", "Root id"),
    ("parent_id", "Parent id"),
    ("group_id", "Group id"),
    ("queue", "Queue"),
    ("exchange", "Exchange"),
    ("routing_key", "Routing key"),
    ("reason", "Died of"),
    ("error_type", "Error"),
    ("error_message", "Message"),
    ("fingerprint", "Fingerprint"),
    ("attempt", "Retries spent"),
    ("deaths", "Deaths"),
    ("redrives", "Redrives"),
    ("worker", "Worker"),
    ("version", "Code version"),
    ("content_type", "Content type"),
    ("content_encoding", "Content encoding"),
)


def short(dotted: str) -> str:
    """Class name of a dotted one."""
    return dotted.rpartition(".")[2]


def row(stored: StoredLetter, *, now: float) -> dict[str, Any]:
    """A line of a list."""
    letter = stored.letter
    return {
        "id": letter.id,
        "state": stored.state,
        "at": text.date(stored.stored_at),
        "age": text.age(stored.stored_at, now=now),
        "task": letter.task or "",
        "error": short(letter.error_type),
        "message": text.cut(text.without_passwords(letter.error_message), 120),
        "reason": letter.reason,
        "queue": letter.queue,
        "redrives": letter.redrives,
        "named": ", ".join(f"{name}={value}" for name, value in letter.log_args.items()),
    }


def rows(letters: Iterable[StoredLetter]) -> list[dict[str, Any]]:
    now = time.time()
    return [row(stored, now=now) for stored in letters]


def overview(store: DeadLetterStore) -> dict[str, Any]:
    """Groups of open letters. One call for the counts, and one for each of the ``GROUPS`` largest causes."""
    stats = store.stats()
    now = time.time()
    causes = []
    for fingerprint, number in list(stats.by_fingerprint.items())[:GROUPS]:
        newest = store.find(Query(fingerprint=fingerprint), limit=1).letters
        cause = {"fingerprint": fingerprint, "number": number}
        # It may have been closed since it was counted; a template takes no name that is missing for a default.
        said = row(newest[0], now=now) if newest else dict.fromkeys(("id", "error", "reason", "task", "message"), "")
        causes.append({**said, **cause})
    others = [(name, label, _largest(stats, name)) for name, label in _KINDS]
    return {
        "stats": stats,
        "oldest": text.age(stats.oldest, now=now),
        "newest": text.age(stats.newest, now=now),
        "size": text.size(stats.bytes),
        "causes": causes,
        "more_causes": len(stats.by_fingerprint) > GROUPS,
        "kinds": others,
        "states": list(stats.by_state.items()),
        "dropped": list(stats.dropped.items()),
    }


_KINDS = (("task", "Task"), ("queue", "Queue"), ("reason", "Died of"), ("error_type", "Error"))


def _largest(stats: Stats, name: str) -> list[tuple[str, int]]:
    assert name in GROUPED  # noqa: S101 - the list has a filter of this name
    return list(getattr(stats, f"by_{name}").items())[:GROUPS]


def details(stored: StoredLetter, *, see_arguments: bool) -> dict[str, Any]:
    """All that a letter's page tells; without *see_arguments* nothing of the arguments but the allow-listed ones."""
    letter = stored.letter
    known = record.details(stored, show_args=see_arguments)
    facts = [(label, str(known[name])) for name, label in _FACTS if known[name] not in (None, "")]
    facts.append(("Body", text.size(len(letter.body))))
    if letter.parked:
        facts.append(("Parked", "its chord waits for it"))
    shown = {
        "id": letter.id,
        "state": stored.state,
        "is_open": stored.state in OPEN,
        "leased": stored.leased,
        "title": f"{short(letter.error_type) or letter.reason} in {letter.task or 'a message without a task'}",
        "facts": facts,
        "timeline": timeline(stored),
        "traceback": _cut(known["traceback"].rstrip()),
        "audit": [(text.date(one.at), one.action, one.by, one.why) for one in stored.audit],
        "named": pretty(known["log_args"]) if known["log_args"] else "",
        "headers": pretty(known["headers"]),
        "properties": pretty(known["properties"]),
        "fingerprint": letter.fingerprint,
        "successor": stored.successor,
        "predecessor": _predecessor(letter),
    }
    if see_arguments:
        shown["arguments"] = pretty(known["arguments"])
    return shown


def timeline(stored: StoredLetter) -> list[tuple[str, str, str]]:
    """``(moment, what, where)``, in the order in which it happened."""
    letter = stored.letter
    moments: list[tuple[float | None, str, str]] = [(letter.first_published, "published", "")]
    moments += [(each.at, f"attempt failed: {each.error}", each.worker) for each in letter.attempts]
    if not letter.attempts:
        moments.append((letter.first_failed, "first failed", ""))
        moments.append((letter.last_failed or None, "failed for good", letter.worker))
    moments.append((stored.stored_at, "became a dead letter", ""))
    return [(text.date(at), what, where) for at, what, where in moments if at is not None]


def siblings(store: DeadLetterStore, letter: DeadLetter) -> tuple[list[dict[str, Any]], bool]:
    """The newest other open letters of the same cause, and whether there are more. One call."""
    if not letter.fingerprint:
        return [], False
    found = store.find(Query(fingerprint=letter.fingerprint), limit=SIBLINGS + 2).letters
    others = [stored for stored in found if stored.letter.id != letter.id]
    return rows(others[:SIBLINGS]), len(others) > SIBLINGS


def pretty(value: object) -> str:
    """JSON for people."""
    return _cut(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def _predecessor(letter: DeadLetter) -> str | None:
    redrive = Marks.read(letter.headers).redrive
    return redrive[0] if redrive else None


def _cut(value: str) -> str:
    if len(value) <= _VALUE_MAX:
        return value
    return f"{value[:_VALUE_MAX]}\n… {len(value) - _VALUE_MAX} more characters"
