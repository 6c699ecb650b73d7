"""The table of run history: what became of each slot of a schedule, and of each run by hand."""

from __future__ import annotations

from django.db import models

#: How a run came about.
KINDS = (("planned", "planned"), ("triggered", "run now"), ("backfilled", "backfilled"))

#: Whether it was fired, and if not why: as in the history that beats keep.
VERDICTS = (
    ("fired", "fired"),
    ("buffered", "waited for the run before it"),
    ("expired", "missed, and too old"),
    ("skipped", "missed, and skipped"),
    ("beyond_max_catchup", "missed, and there were too many"),
    ("overlapped", "the run before it was not over"),
    ("paused", "paused"),
    ("skipped_by_hand", "skipped by hand"),
    ("not_sent", "its own publish sent nothing"),
    ("superseded", "waited, and its schedule was timed anew"),
)


class ScheduleRun(models.Model):  # type: ignore[misc]
    """One slot that was fired, slots passed over in one step, or one run by hand. Nothing edits it by hand.

    The first half is copied from what beat wrote as it decided; the second is what workers have told of the task.
    All moments are in UTC.
    """

    identity = models.CharField(max_length=64, editable=False)
    """Digest of schedule, slot and kind, and of the task id of a run by hand: it makes each copy harmless."""

    schedule = models.CharField(max_length=255)
    slot = models.DateTimeField(help_text="Of slots that were passed over in one step, the last.")
    kind = models.CharField(max_length=16, choices=KINDS)
    verdict = models.CharField(max_length=32, choices=VERDICTS)
    decided = models.DateTimeField(help_text="When it was fired, or decided that it is not.")
    first = models.DateTimeField(null=True, help_text="The first of the slots that were passed over with it.")
    count = models.PositiveIntegerField(default=1, help_text="Slots that were passed over.")
    missed = models.PositiveIntegerField(default=0, help_text="Earlier slots that this run stands for.")
    by = models.CharField(max_length=255, blank=True, help_text="Who asked for it, or had it skipped.")
    term = models.BigIntegerField(null=True, help_text="Of the beat that decided it.")
    task_id = models.CharField(max_length=255, blank=True)

    outcome = models.CharField(max_length=32, blank=True, help_text="Empty: no worker has told of it.")
    started = models.DateTimeField(null=True, help_text="The first attempt.")
    ended = models.DateTimeField(null=True, help_text="The last attempt that was told of.")
    duration = models.FloatField(null=True, help_text="Seconds that the last attempt ran.")
    attempts = models.PositiveIntegerField(default=0, help_text="Starts that count against its retries.")
    deaths = models.PositiveIntegerField(default=0, help_text="Starts whose process died.")
    worker = models.CharField(max_length=255, blank=True)
    error = models.CharField(max_length=255, blank=True, help_text="Class of what the last attempt raised.")
    dead_letter = models.CharField(max_length=255, blank=True, help_text="Its id, if it became one.")

    class Meta:
        db_table = "celery_hardened_schedule_run"
        verbose_name = "run of a schedule"
        verbose_name_plural = "runs of schedules"
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["identity"], name="hardened_run_identity")]
        indexes = [
            models.Index(fields=["task_id"], name="hardened_run_task"),
            models.Index(fields=["decided", "id"], name="hardened_run_decided"),
            models.Index(fields=["slot", "id"], name="hardened_run_slot"),
            models.Index(fields=["schedule", "slot", "id"], name="hardened_run_schedule"),
            models.Index(fields=["verdict", "slot", "id"], name="hardened_run_verdict"),
            models.Index(fields=["outcome", "slot", "id"], name="hardened_run_outcome"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule} {self.slot:%Y-%m-%d %H:%M:%S} UTC"
