"""Keep a letter once, and keep the letters of two messages apart though they share a task id."""

from __future__ import annotations

from dataclasses import replace

from celery_hardened.dead_letter.contract import DeadLetterStore
from celery_hardened.dead_letter.letter import DeadLetter, other_id
from celery_hardened.errors import DeadLetterNotFoundError, EnvelopeError


def keep(store: DeadLetterStore, letter: DeadLetter) -> tuple[str, bool]:
    """Put *letter* into *store*, unless this failure is there already.

    A letter's id is made of its task id, so that a redelivery finds the letter of the run that
    was killed. But a task id may be published again: a user's own ``task_id="sync-42"``, a task
    that ``replace()`` put in another's place. That failure gets an id of its own.

    Returns:
        The id it is kept under, and whether it is new.

    Raises:
        StoreUnavailableError: It is perhaps not kept.
    """
    if store.put(letter):
        return letter.id, True
    if not _holds_another(store, letter.id, letter.first_published, letter.body):
        return letter.id, store.put(letter)  # again: it may just have been dropped
    letter = replace(letter, id=other_id(letter.id, letter.first_published, letter.body))
    return letter.id, store.put(letter)


def kept_as(store: DeadLetterStore, letter_id: str, first_published: float | None, body: bytes) -> str:
    """The id under which ``keep`` has put, or would put, the letter of such a message."""
    another = _holds_another(store, letter_id, first_published, body)
    return other_id(letter_id, first_published, body) if another else letter_id


def _holds_another(store: DeadLetterStore, letter_id: str, first_published: float | None, body: bytes) -> bool:
    """Is there a letter of this id, and was it another message that failed?"""
    try:
        found = store.get(letter_id).letter
    except (DeadLetterNotFoundError, EnvelopeError):
        return False
    if found.first_published is None and first_published is None:
        return found.body != body  # neither is stamped
    return found.first_published != first_published
