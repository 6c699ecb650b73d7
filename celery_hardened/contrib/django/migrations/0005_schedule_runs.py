from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """What became of each slot."""

    dependencies = [
        ("celery_hardened", "0004_dead_letters_in_the_admin"),
    ]

    operations = [
        migrations.CreateModel(
            name="ScheduleRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("identity", models.CharField(editable=False, max_length=64)),
                ("schedule", models.CharField(max_length=255)),
                ("slot", models.DateTimeField(help_text="Of slots that were passed over in one step, the last.")),
                (
                    "kind",
                    models.CharField(
                        choices=[("planned", "planned"), ("triggered", "run now"), ("backfilled", "backfilled")],
                        max_length=16,
                    ),
                ),
                (
                    "verdict",
                    models.CharField(
                        choices=[
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
                        ],
                        max_length=32,
                    ),
                ),
                ("decided", models.DateTimeField(help_text="When it was fired, or decided that it is not.")),
                (
                    "first",
                    models.DateTimeField(help_text="The first of the slots that were passed over with it.", null=True),
                ),
                ("count", models.PositiveIntegerField(default=1, help_text="Slots that were passed over.")),
                ("missed", models.PositiveIntegerField(default=0, help_text="Earlier slots that this run stands for.")),
                ("by", models.CharField(blank=True, help_text="Who asked for it, or had it skipped.", max_length=255)),
                ("term", models.BigIntegerField(help_text="Of the beat that decided it.", null=True)),
                ("task_id", models.CharField(blank=True, max_length=255)),
                ("outcome", models.CharField(blank=True, help_text="Empty: no worker has told of it.", max_length=32)),
                ("started", models.DateTimeField(help_text="The first attempt.", null=True)),
                ("ended", models.DateTimeField(help_text="The last attempt that was told of.", null=True)),
                ("duration", models.FloatField(help_text="Seconds that the last attempt ran.", null=True)),
                (
                    "attempts",
                    models.PositiveIntegerField(default=0, help_text="Starts that count against its retries."),
                ),
                ("deaths", models.PositiveIntegerField(default=0, help_text="Starts whose process died.")),
                ("worker", models.CharField(blank=True, max_length=255)),
                (
                    "error",
                    models.CharField(blank=True, help_text="Class of what the last attempt raised.", max_length=255),
                ),
                ("dead_letter", models.CharField(blank=True, help_text="Its id, if it became one.", max_length=255)),
            ],
            options={
                "verbose_name": "run of a schedule",
                "verbose_name_plural": "runs of schedules",
                "db_table": "celery_hardened_schedule_run",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["task_id"], name="hardened_run_task"),
                    models.Index(fields=["decided", "id"], name="hardened_run_decided"),
                    models.Index(fields=["slot", "id"], name="hardened_run_slot"),
                    models.Index(fields=["schedule", "slot", "id"], name="hardened_run_schedule"),
                    models.Index(fields=["verdict", "slot", "id"], name="hardened_run_verdict"),
                    models.Index(fields=["outcome", "slot", "id"], name="hardened_run_outcome"),
                ],
                "constraints": [models.UniqueConstraint(fields=("identity",), name="hardened_run_identity")],
            },
        ),
    ]
