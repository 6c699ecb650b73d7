"""Redrives and discards of many letters: asked for in the admin, done by a worker, seen by whoever looks.

Letters themselves stay in their store, whichever that is; here is what was asked, and how far it has come.
Moments are by the database server's clock.
"""

from __future__ import annotations

from django.db import models


class BulkAction(models.Model):  # type: ignore[misc]
    """One redrive, dry run of a redrive, or discard of many letters."""

    key = models.CharField(max_length=32, unique=True)
    """Of the page that asked: a page sent twice is one action."""

    what = models.CharField(max_length=16, choices=[("redrive", "Redrive"), ("discard", "Discard")])
    dry_run = models.BooleanField(default=False)
    by = models.TextField()
    user_id = models.TextField()
    """Primary key of who asked, for the admin's log; no foreign key, because the app works without users too."""

    why = models.TextField(blank=True)
    query = models.TextField()
    """JSON of the fields of ``Query``; its ``until`` is what fixes the set of letters."""

    rate = models.FloatField(null=True)
    """Messages a second at most."""

    canary = models.PositiveIntegerField(null=True)
    canary_wait = models.FloatField(default=60.0)
    canary_max_failed = models.FloatField(default=0.0)
    canary_sent_at = models.DateTimeField(null=True)
    canary_said = models.TextField(blank=True)

    state = models.CharField(
        max_length=16,
        default="waiting",
        choices=[
            ("waiting", "waits for a worker"),
            ("listing", "lists the letters"),
            ("canary", "sends the canary"),
            ("watching", "watches the canary"),
            ("working", "under way"),
            ("done", "done"),
            ("stopped", "stopped"),
        ],
    )
    note = models.TextField(blank=True)
    """Why it stopped, or what troubled it last."""

    total = models.PositiveIntegerField()
    """Letters; what was counted when it was asked, until they are listed."""

    done = models.PositiveIntegerField(default=0)
    """Sent, in a dry run those that would be; discarded."""

    refused = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    left = models.PositiveIntegerField(default=0)
    """Left alone: closed or held by somebody else."""

    asked_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    progressed_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    held_since = models.DateTimeField(null=True)
    """Since when there is nothing to do but to wait for letters that another redrive holds."""

    stop_by = models.TextField(blank=True)
    """Who asked to stop it; empty: nobody."""

    holder = models.TextField(blank=True)
    """Task id of the message that works on it, or is to go on with it."""

    token = models.CharField(max_length=32, blank=True)
    """Of the delivery that works on it: new each time, because task ids come back."""

    held_until = models.DateTimeField(null=True)

    class Meta:
        db_table = "celery_hardened_bulk_action"
        verbose_name = "bulk action on dead letters"
        verbose_name_plural = "bulk actions on dead letters"
        default_permissions = ()
        indexes = [models.Index(fields=["ended_at"], name="hardened_bulk_ended")]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"

    @property
    def kind(self) -> str:
        """``Redrive``, ``Dry run`` or ``Discard``."""
        return "Dry run" if self.dry_run else str(self.what).capitalize()

    @property
    def ended(self) -> bool:
        return self.state in ("done", "stopped")

    @property
    def dealt_with(self) -> int:
        return int(self.done + self.refused + self.failed + self.left)


class BulkActionLetter(models.Model):  # type: ignore[misc]
    """One letter of a bulk action, in the order in which they are dealt with."""

    action = models.ForeignKey(BulkAction, on_delete=models.CASCADE, related_name="letters")
    letter = models.TextField()
    outcome = models.CharField(max_length=8, blank=True)
    """Empty: to do; ``held``: by another redrive, to be tried again; ``done``, ``refused``, ``failed``, ``left``."""

    why = models.TextField(blank=True)

    class Meta:
        db_table = "celery_hardened_bulk_action_letter"
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["action", "letter"], name="hardened_bulk_letter_once")]
        indexes = [models.Index(fields=["action", "outcome", "id"], name="hardened_bulk_letter_todo")]
