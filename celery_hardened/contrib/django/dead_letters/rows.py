"""A letter as a row, and back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, Final

from celery_hardened.contrib.django.models import DeadLetterRow
from celery_hardened.dead_letter.contract import AUDIT_MAX, INDEX_BYTES, Audit, State, StoredLetter
from celery_hardened.dead_letter.index import LABELS, labels
from celery_hardened.dead_letter.letter import DeadLetter, dump, load
from celery_hardened.dead_letter.record import Record
from celery_hardened.errors import EnvelopeError

#: Characters kept of who and why.
_NOTE_MAX: Final = 500

#: Columns that hold the record of a letter.
RECORD: Final = ("state", "is_open", "audit", "token", "tokens", "lease", "accepted", "successor", "expires")

#: Seconds; a letter that asks for more is kept this long.
_AGE_MAX: Final = 1e9


def row_of(letter: DeadLetter, *, state: State, at: int, now: int, age: float, audit: Sequence[Audit]) -> DeadLetterRow:
    """The row of a letter that is written at *now* and was stored at *at*, both in microseconds."""
    envelope = zlib.compress(dump(letter))
    record = Record(
        state=state, parked=letter.parked, audit=tuple(audit[-AUDIT_MAX:]), expires=now / 1e6 + min(age, _AGE_MAX)
    )
    return DeadLetterRow(
        id=key_of(letter.id),
        envelope=envelope,
        at=at,
        bytes=len(envelope) + INDEX_BYTES,
        parked=letter.parked,
        group_id=_note(letter.group_id) if letter.group_id else None,
        **dict(zip(LABELS, map(key_of, labels(letter)), strict=True)),
        **columns(record),
    )


def columns(record: Record) -> dict[str, Any]:
    """The columns of *record*."""
    return {
        "state": record.state,
        "is_open": record.open,
        "audit": json.dumps([[_us(one.at), _note(one.action), _note(one.by), _note(one.why)] for one in record.audit]),
        "token": record.token,
        "tokens": record.tokens,
        "lease": _us(record.lease),
        "accepted": record.accepted,
        "successor": record.successor,
        "expires": _us(record.expires),
    }


def record_of(row: DeadLetterRow) -> Record:
    return Record(
        state=row.state,
        parked=row.parked,
        expires=row.expires / 1e6,
        audit=tuple(Audit(at / 1e6, action, by, why) for at, action, by, why in json.loads(row.audit)),
        token=row.token,
        tokens=row.tokens,
        lease=row.lease / 1e6,
        accepted=row.accepted,
        successor=row.successor,
    )


def stored(row: DeadLetterRow, *, now: int) -> StoredLetter:
    """Raises ``EnvelopeError``."""
    try:
        letter = load(zlib.decompress(bytes(row.envelope)))
    except (EnvelopeError, zlib.error) as problem:
        why = problem.problem if isinstance(problem, EnvelopeError) else f"zlib: {problem}"
        raise EnvelopeError(f"letter {row.id!r}: {why}") from problem
    record = record_of(row)
    return StoredLetter(
        letter=letter,
        state=record.state,
        stored_at=row.at / 1e6,
        audit=record.audit,
        leased=record.held(now / 1e6),
        successor=record.successor,
    )


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def key_of(value: str) -> str:
    """*value*, an id, a label or a note, as databases take it: no lone surrogate, and for PostgreSQL no NUL."""
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _note(text: str) -> str:
    return key_of(text)[:_NOTE_MAX]
