"""Policies of schedules, beside django-celery-beat's rows. People write them."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from celery_hardened.beat.policy import Policy
from celery_hardened.errors import ConfigurationError

#: ``catchup_window`` of a schedule whose missed runs are made up for however old they are.
NO_LIMIT = -1.0


class SchedulePolicy(models.Model):  # type: ignore[misc]
    """What becomes of missed and overlapping runs of one periodic task, beside django-celery-beat's own columns.

    An empty field is as the app's ``hardened_beat_*`` settings say, and so is a task without such a row.
    Durations are seconds.
    """

    periodic_task = models.OneToOneField(
        "django_celery_beat.PeriodicTask", on_delete=models.CASCADE, primary_key=True, related_name="hardened"
    )
    missed_run = models.CharField(
        max_length=16,
        null=True,
        blank=True,
        choices=[("run_once", "Run the latest one once"), ("skip", "Skip"), ("run_all", "Run each of them")],
        help_text="Of the runs that could not be started in time. Empty: as the app's settings say.",
    )
    catchup_window = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(NO_LIMIT)],
        help_text="Seconds. A missed run older than this is not made up for. -1: however old.",
    )
    max_catchup = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="So many missed runs are made up for at most, the newest. With 'Run each of them' only.",
    )
    grace = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0)],
        help_text="Seconds. A run that is late by no more than this is on time.",
    )
    overlap = models.CharField(
        max_length=16,
        null=True,
        blank=True,
        choices=[
            ("allow", "Run beside it"),
            ("skip", "Skip"),
            ("buffer_one", "Keep one waiting"),
            ("cancel_other", "Cancel the other"),
            ("terminate_other", "Terminate the other"),
        ],
        help_text="While the last run still waits or runs. Anything but 'Run beside it' needs a hardened task.",
    )
    jitter = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0), MaxValueValidator(86_400.0)],
        help_text="Seconds. Each run is started up to so much later.",
    )

    class Meta:
        db_table = "celery_hardened_schedule_policy"
        verbose_name = "policy of missed and overlapping runs"
        verbose_name_plural = "policies of missed and overlapping runs"
        # Here, and not beside django-celery-beat's own: these tables are ours to migrate.
        permissions = (
            ("run_schedule", "Can run schedules now"),
            ("pause_schedule", "Can pause and resume schedules"),
            ("skip_schedule", "Can skip the next slot of schedules"),
            ("backfill_schedule", "Can backfill schedules"),
        )

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.said().items())
        return said or "as the app's settings say"

    def said(self) -> dict[str, Any]:
        """The fields that are not empty, in the words of ``Policy.of``."""
        return policy_options({name: getattr(self, name) for name in POLICY_FIELDS})

    def clean(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ValidationError: With the sentence of the policy's own check.
        """
        super().clean()
        try:
            Policy.of(self.said(), otherwise=Policy())
        except ConfigurationError as refused:
            raise ValidationError(str(refused)) from refused

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write it, and touch the stamp of changes, so that beat looks at once."""
        super().save(*args, **kwargs)
        _touch()

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        """Delete it, and touch the stamp of changes, so that beat looks at once."""
        done = super().delete(*args, **kwargs)
        _touch()
        return done


#: Columns of a policy, in the order in which they are read.
POLICY_FIELDS = ("missed_run", "catchup_window", "max_catchup", "grace", "overlap", "jitter")


def policy_options(columns: dict[str, Any]) -> dict[str, Any]:
    """Columns of a policy in the words of ``Policy.of``: without the empty ones, ``None`` for no limit."""
    found = {name: value for name, value in columns.items() if value not in (None, "")}
    if found.get("catchup_window") == NO_LIMIT:
        found["catchup_window"] = None
    return found


def _touch() -> None:
    from django_celery_beat.models import PeriodicTasks

    PeriodicTasks.update_changed()
