from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """Dead letters in the project's database, for ``hardened_dead_letter_store = "django"``."""

    dependencies = [
        ("celery_hardened", "0002_schedule_policies"),
    ]

    operations = [
        migrations.CreateModel(
            name="DeadLetterFence",
            fields=[
                ("id", models.TextField(primary_key=True, serialize=False)),
                ("verdict", models.TextField(blank=True)),
                ("expires", models.BigIntegerField(db_index=True)),
            ],
            options={
                "db_table": "celery_hardened_dead_letter_fence",
            },
        ),
        migrations.CreateModel(
            name="DeadLetterTotals",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("letters", models.BigIntegerField(default=0)),
                ("bytes", models.BigIntegerField(default=0)),
                ("dropped_age", models.BigIntegerField(default=0)),
                ("dropped_count", models.BigIntegerField(default=0)),
                ("dropped_bytes", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name_plural": "dead letter totals",
                "db_table": "celery_hardened_dead_letter_totals",
            },
        ),
        migrations.CreateModel(
            name="DeadLetterRow",
            fields=[
                ("id", models.TextField(primary_key=True, serialize=False)),
                ("envelope", models.BinaryField()),
                ("at", models.BigIntegerField()),
                ("task", models.CharField(blank=True, max_length=240)),
                ("queue", models.CharField(blank=True, max_length=240)),
                ("reason", models.CharField(max_length=240)),
                ("fingerprint", models.CharField(blank=True, max_length=240)),
                ("error_type", models.CharField(blank=True, max_length=240)),
                ("state", models.CharField(max_length=16)),
                ("is_open", models.BooleanField()),
                ("parked", models.BooleanField()),
                ("group_id", models.TextField(null=True)),
                ("audit", models.TextField()),
                ("token", models.TextField(blank=True)),
                ("tokens", models.IntegerField(default=0)),
                ("lease", models.BigIntegerField(default=0)),
                ("accepted", models.TextField(null=True)),
                ("successor", models.TextField(null=True)),
                ("expires", models.BigIntegerField(db_index=True)),
                ("bytes", models.IntegerField()),
            ],
            options={
                "verbose_name": "dead letter",
                "db_table": "celery_hardened_dead_letter",
                "indexes": [
                    models.Index(fields=["is_open", "at", "id"], name="hardened_letter_open"),
                    models.Index(fields=["state", "at", "id"], name="hardened_letter_state"),
                    models.Index(
                        condition=models.Q(("is_open", True)), fields=["task", "at", "id"], name="hardened_letter_task"
                    ),
                    models.Index(
                        condition=models.Q(("is_open", True)),
                        fields=["queue", "at", "id"],
                        name="hardened_letter_queue",
                    ),
                    models.Index(
                        condition=models.Q(("is_open", True)),
                        fields=["reason", "at", "id"],
                        name="hardened_letter_reason",
                    ),
                    models.Index(
                        condition=models.Q(("is_open", True)),
                        fields=["fingerprint", "at", "id"],
                        name="hardened_letter_fingerprint",
                    ),
                    models.Index(
                        condition=models.Q(("is_open", True)),
                        fields=["error_type", "at", "id"],
                        name="hardened_letter_error",
                    ),
                ],
            },
        ),
    ]
