from __future__ import annotations

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """The policies of missed and overlapping runs, one row beside a periodic task of django-celery-beat."""

    dependencies = [
        ("celery_hardened", "0001_finished_work"),
        # Any that has the table would do; this one is in every release that we work with.
        ("django_celery_beat", "0018_improve_crontab_helptext"),
    ]
    operations = [
        migrations.CreateModel(
            name="SchedulePolicy",
            fields=[
                (
                    "periodic_task",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="hardened",
                        serialize=False,
                        to="django_celery_beat.periodictask",
                    ),
                ),
                (
                    "missed_run",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("run_once", "Run the latest one once"),
                            ("skip", "Skip"),
                            ("run_all", "Run each of them"),
                        ],
                        help_text="Of the runs that could not be started in time. Empty: as the app's settings say.",
                        max_length=16,
                        null=True,
                    ),
                ),
                (
                    "catchup_window",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds. A missed run older than this is not made up for. -1: however old.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(-1.0)],
                    ),
                ),
                (
                    "max_catchup",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text=(
                            "So many missed runs are made up for at most, the newest. With 'Run each of them' only."
                        ),
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "grace",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds. A run that is late by no more than this is on time.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0.0)],
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("allow", "Run beside it"),
                            ("skip", "Skip"),
                            ("buffer_one", "Keep one waiting"),
                            ("cancel_other", "Cancel the other"),
                            ("terminate_other", "Terminate the other"),
                        ],
                        help_text=(
                            "While the last run still waits or runs. "
                            "Anything but 'Run beside it' needs a hardened task."
                        ),
                        max_length=16,
                        null=True,
                    ),
                ),
                (
                    "jitter",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds. Each run is started up to so much later.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                    ),
                ),
            ],
            options={
                "db_table": "celery_hardened_schedule_policy",
                "verbose_name": "policy of missed and overlapping runs",
                "verbose_name_plural": "policies of missed and overlapping runs",
            },
        ),
    ]
