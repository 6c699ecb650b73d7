"""What becomes of some letters of a bulk action: sent, discarded, refused, or left alone, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from celery_hardened.cli.text import without_passwords
from celery_hardened.contrib.django.models import BulkAction
from celery_hardened.dead_letter.contract import OPEN, Query, StoredLetter
from celery_hardened.errors import DeadLetterError, DeadLetterNotFoundError, EnvelopeError, StoreUnavailableError
from celery_hardened.hardening import Hardening

#: What became of a letter (``BulkActionLetter.outcome``), and why.
Outcome: TypeAlias = tuple[str, str]

_DONE: Final = ("done", "")
_HELD: Final = ("held", "")


def marked(action: BulkAction) -> str:
    """The reason as it stands in the audit of each letter. By the number, what was sent and not noted is told."""
    return f"{action.why} (bulk action {action.pk})"


def deal(
    hardening: Hardening, action: BulkAction, ids: Sequence[str]
) -> tuple[dict[str, Outcome], Exception | None]:  # fmt: skip
    """Do with the letters *ids* what *action* says. Those without an outcome are as they were, for the error returned.

    Raises:
        StoreUnavailableError: Nothing is known; to call it again finds out.
    """
    try:
        found = {
            one.letter.id: one for one in hardening.dead_letters.find(Query(ids=tuple(ids)), limit=len(ids)).letters
        }
        return _together(hardening, action, ids, found)
    except EnvelopeError as problem:
        # One of them cannot be read, and the store does not say which without the others.
        if len(ids) == 1:
            return {ids[0]: ("failed", str(problem))}, None
    outcomes: dict[str, Outcome] = {}
    for one in ids:
        some, trouble = deal(hardening, action, [one])
        outcomes |= some
        if trouble is not None:
            return outcomes, trouble
    return outcomes, None


def _together(
    hardening: Hardening, action: BulkAction, ids: Sequence[str], found: dict[str, StoredLetter]
) -> tuple[dict[str, Outcome], Exception | None]:
    outcomes = {one: _closed(hardening, action, one) for one in ids if one not in found}
    if action.what == "discard":
        return outcomes | {one: _discard(hardening, action, one) for one in ids if one in found}, None
    # Those that another redrive holds would be waited for.
    outcomes |= {one: _HELD for one, stored in found.items() if stored.leased}
    ready = [one for one in ids if one not in outcomes]
    if not ready:
        return outcomes, None
    report = hardening.redrive(
        Query(ids=tuple(ready)),
        by=action.by,
        why=marked(action),
        dry_run=action.dry_run,
        rate=None if action.dry_run else action.rate,
    )
    outcomes |= _refused(hardening, action, report.refused)
    trouble: Exception | None = None
    if report.stopped:  # the broker is away; those letters fare no worse than all that follow
        trouble = StoreUnavailableError("redriving dead letters", without_passwords(report.stopped), "the broker")
        sent = [one for one in ready if one not in report.refused and one not in report.failed]
    else:
        outcomes |= {one: ("failed", without_passwords(why)) for one, why in report.failed.items()}
        sent = [one for one in ready if one not in outcomes]
    all_sent = report.sent == len(sent)
    outcomes |= {one: _DONE if all_sent else _closed(hardening, action, one) for one in sent}
    return outcomes, trouble


def _refused(hardening: Hardening, action: BulkAction, refused: Mapping[str, str]) -> dict[str, Outcome]:
    """Some may have been closed since they were found, and by a delivery of this action that was taken over from."""
    if not refused:
        return {}
    found = hardening.dead_letters.find(Query(ids=tuple(refused)), limit=len(refused)).letters
    still = {one.letter.id for one in found}
    return {
        one: ("refused", why) if one in still else _closed(hardening, action, one) for one, why in refused.items()
    }  # fmt: skip


def _discard(hardening: Hardening, action: BulkAction, letter_id: str) -> Outcome:
    try:
        if hardening.discard([letter_id], by=action.by, why=marked(action)):
            return _DONE
    except DeadLetterError as problem:
        return "failed", without_passwords(str(problem))
    return _closed(hardening, action, letter_id)


def _closed(hardening: Hardening, action: BulkAction, letter_id: str) -> Outcome:
    """Of a letter that is not to be had: was it this action, before it was killed, or somebody else?"""
    try:
        stored = hardening.dead_letters.get(letter_id)
    except DeadLetterNotFoundError:
        return "left", "it is there no longer."
    if stored.state in OPEN:
        return _HELD
    acts = [one for one in stored.audit if one.action in ("redrive", "discarded")]
    if acts and acts[-1].why == marked(action):
        return _DONE
    return "left", f"it is {stored.state} already."
