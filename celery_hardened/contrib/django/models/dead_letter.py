"""Dead letters in the project's database; ``dead_letters/store.py`` writes them, and nobody else is to.

Moments are microseconds since the epoch by the database server's clock: exact, comparable, and the same whatever
``USE_TZ`` says.
"""

from __future__ import annotations

from django.db import models

_OPEN = models.Q(is_open=True)
_CLOSED = models.Q(is_open=False)


class DeadLetterRow(models.Model):  # type: ignore[misc]
    """One letter: its envelope, what lists are made by, and its record (``dead_letter/record.py``)."""

    id = models.TextField(primary_key=True)
    envelope = models.BinaryField()
    """Compressed by zlib."""

    at = models.BigIntegerField()
    """When it was stored."""

    task = models.CharField(max_length=240, blank=True)
    queue = models.CharField(max_length=240, blank=True)
    reason = models.CharField(max_length=240)
    fingerprint = models.CharField(max_length=240, blank=True)
    error_type = models.CharField(max_length=240, blank=True)

    state = models.CharField(max_length=16)
    is_open = models.BooleanField()
    parked = models.BooleanField()
    group_id = models.TextField(null=True)
    audit = models.TextField()
    """JSON: ``[[at, action, by, why], ...]``, oldest first."""

    token = models.TextField(blank=True)
    tokens = models.IntegerField(default=0)
    lease = models.BigIntegerField(default=0)
    accepted = models.TextField(null=True)
    successor = models.TextField(null=True)
    expires = models.BigIntegerField(db_index=True)
    bytes = models.IntegerField()

    class Meta:
        db_table = "celery_hardened_dead_letter"
        verbose_name = "dead letter"
        indexes = [
            # SQLite looks nothing up by a condition that is a bare column, so the condition bounds the index; and the
            # column is in it too, or SQLite would read it from the row, behind the envelope.
            models.Index(fields=["at", "id", "is_open"], condition=_OPEN, name="hardened_letter_newest"),
            models.Index(fields=["at", "id"], condition=_CLOSED, name="hardened_letter_closed"),
            models.Index(fields=["queue", "reason", "is_open"], condition=_OPEN, name="hardened_letter_pairs"),
            models.Index(fields=["state", "at", "id"], name="hardened_letter_state"),
            models.Index(fields=["task", "at", "id", "is_open"], condition=_OPEN, name="hardened_letter_task"),
            models.Index(fields=["queue", "at", "id", "is_open"], condition=_OPEN, name="hardened_letter_queue"),
            models.Index(fields=["reason", "at", "id", "is_open"], condition=_OPEN, name="hardened_letter_reason"),
            models.Index(
                fields=["fingerprint", "at", "id", "is_open"], condition=_OPEN, name="hardened_letter_fingerprint"
            ),
            models.Index(fields=["error_type", "at", "id", "is_open"], condition=_OPEN, name="hardened_letter_error"),
        ]

    def __str__(self) -> str:
        return str(self.id)


class DeadLetterTotals(models.Model):  # type: ignore[misc]
    """One row, for bounds that would need a count of all letters at each write."""

    letters = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    dropped_age = models.BigIntegerField(default=0)
    dropped_count = models.BigIntegerField(default=0)
    dropped_bytes = models.BigIntegerField(default=0)

    class Meta:
        db_table = "celery_hardened_dead_letter_totals"
        verbose_name_plural = "dead letter totals"


class DeadLetterFence(models.Model):  # type: ignore[misc]
    """Which message of a letter that was dropped may still run."""

    id = models.TextField(primary_key=True)
    verdict = models.TextField(blank=True)
    expires = models.BigIntegerField(db_index=True)

    class Meta:
        db_table = "celery_hardened_dead_letter_fence"
