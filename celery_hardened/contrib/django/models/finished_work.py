"""What ``@idempotent(..., store=\"database\")`` has done; ``celery_hardened/idempotency/database_sql.py`` writes it."""

from __future__ import annotations

from django.db import models


class FinishedWork(models.Model):  # type: ignore[misc]
    """The marker of ``@idempotent(..., store="database")``: one row for each key whose work was done.

    It is inserted when the work begins and committed together with the effect, so
    other transactions see it only once both are there.
    """

    key = models.TextField(primary_key=True)
    fingerprint = models.CharField(max_length=64)
    task_id = models.TextField()
    result = models.BinaryField(null=True)
    finished = models.BooleanField()
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "celery_hardened_finished_work"
        verbose_name_plural = "finished work"

    def __str__(self) -> str:
        return str(self.key)
