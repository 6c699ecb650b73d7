"""By what letters are found: the labels of a letter, and what a query asks of them. Pure."""

from __future__ import annotations

import hashlib
import re

from celery_hardened.dead_letter.contract import OPEN, Query, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter

#: Fields of a letter and of a query by which letters are found, in the order of LABELS in records.lua.
LABELS = ("task", "queue", "reason", "fingerprint", "error_type")

#: Longer values are foreign. They are part of Redis keys, so the rest becomes a digest.
_LABEL_MAX = 200

#: What became of one, as it is counted by: who asks for it by that finds it.
_CUT = re.compile(rf".{{{_LABEL_MAX}}}~[0-9a-f]{{12}}", re.DOTALL)


def label(value: str | None) -> str:
    """*value* as it is indexed: ``""`` for none, never too long, always encodable."""
    text = (value or "").encode("utf-8", "backslashreplace").decode()
    if len(text) <= _LABEL_MAX or _CUT.fullmatch(text):
        return text
    return f"{text[:_LABEL_MAX]}~{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def labels(letter: DeadLetter) -> list[str]:
    """The labels of *letter*, in the order of ``LABELS``."""
    return [label(getattr(letter, name)) for name in LABELS]


def index_names(query: Query) -> list[str]:
    """The indexes a letter must all be in to match *query*, its ids and times apart."""
    side = "open" if query.state is None or query.state in OPEN else "closed"
    wanted = {name: getattr(query, name) for name in (*LABELS, "state")}
    return [f"{side}:{name}:{label(value)}" for name, value in wanted.items() if value is not None] or [side]


def matches(query: Query, stored: StoredLetter) -> bool:
    """Does every given field of *query* match?"""
    if query.ids and stored.letter.id not in query.ids:
        return False
    if stored.state not in (OPEN if query.state is None else (query.state,)):
        return False
    for name in LABELS:
        wanted = getattr(query, name)
        if wanted is not None and label(wanted) != label(getattr(stored.letter, name)):
            return False
    if query.since is not None and stored.stored_at < query.since:
        return False
    return query.until is None or stored.stored_at <= query.until
