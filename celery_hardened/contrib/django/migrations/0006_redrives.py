from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """Redrives and discards of many letters, and who may change arguments."""

    dependencies = [
        ("celery_hardened", "0005_schedule_runs"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="deadletter",
            options={
                "default_permissions": ("view",),
                "permissions": [
                    ("redrive_deadletter", "Can send dead letters again"),
                    ("discard_deadletter", "Can discard dead letters"),
                    ("see_arguments", "Can see the arguments of dead letters"),
                    ("edit_arguments", "Can change the arguments of dead letters as they are sent again"),
                ],
                "verbose_name": "dead letter",
            },
        ),
        migrations.CreateModel(
            name="BulkAction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=32, unique=True)),
                ("what", models.CharField(choices=[("redrive", "Redrive"), ("discard", "Discard")], max_length=16)),
                ("dry_run", models.BooleanField(default=False)),
                ("by", models.TextField()),
                ("user_id", models.TextField()),
                ("why", models.TextField(blank=True)),
                ("query", models.TextField()),
                ("rate", models.FloatField(null=True)),
                ("canary", models.PositiveIntegerField(null=True)),
                ("canary_wait", models.FloatField(default=60.0)),
                ("canary_max_failed", models.FloatField(default=0.0)),
                ("canary_sent_at", models.DateTimeField(null=True)),
                ("canary_said", models.TextField(blank=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waits for a worker"),
                            ("listing", "lists the letters"),
                            ("canary", "sends the canary"),
                            ("watching", "watches the canary"),
                            ("working", "under way"),
                            ("done", "done"),
                            ("stopped", "stopped"),
                        ],
                        default="waiting",
                        max_length=16,
                    ),
                ),
                ("note", models.TextField(blank=True)),
                ("total", models.PositiveIntegerField()),
                ("done", models.PositiveIntegerField(default=0)),
                ("refused", models.PositiveIntegerField(default=0)),
                ("failed", models.PositiveIntegerField(default=0)),
                ("left", models.PositiveIntegerField(default=0)),
                ("asked_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("progressed_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("held_since", models.DateTimeField(null=True)),
                ("stop_by", models.TextField(blank=True)),
                ("holder", models.TextField(blank=True)),
                ("token", models.CharField(blank=True, max_length=32)),
                ("held_until", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name": "bulk action on dead letters",
                "verbose_name_plural": "bulk actions on dead letters",
                "db_table": "celery_hardened_bulk_action",
                "default_permissions": (),
                "indexes": [models.Index(fields=["ended_at"], name="hardened_bulk_ended")],
            },
        ),
        migrations.CreateModel(
            name="BulkActionLetter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("letter", models.TextField()),
                ("outcome", models.CharField(blank=True, max_length=8)),
                ("why", models.TextField(blank=True)),
                (
                    "action",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="letters",
                        to="celery_hardened.bulkaction",
                    ),
                ),
            ],
            options={
                "db_table": "celery_hardened_bulk_action_letter",
                "default_permissions": (),
                "indexes": [models.Index(fields=["action", "outcome", "id"], name="hardened_bulk_letter_todo")],
                "constraints": [models.UniqueConstraint(fields=("action", "letter"), name="hardened_bulk_letter_once")],
            },
        ),
        migrations.RemoveIndex(
            model_name="deadletterrow",
            name="hardened_letter_open",
        ),
        migrations.RemoveIndex(
            model_name="deadletterrow",
            name="hardened_letter_task",
        ),
        migrations.RemoveIndex(
            model_name="deadletterrow",
            name="hardened_letter_queue",
        ),
        migrations.RemoveIndex(
            model_name="deadletterrow",
            name="hardened_letter_reason",
        ),
        migrations.RemoveIndex(
            model_name="deadletterrow",
            name="hardened_letter_fingerprint",
        ),
        migrations.RemoveIndex(
            model_name="deadletterrow",
            name="hardened_letter_error",
        ),
        migrations.AddIndex(
            model_name="deadletterrow",
            index=models.Index(
                condition=models.Q(("is_open", True)), fields=["at", "id", "is_open"], name="hardened_letter_newest"
            ),
        ),
        migrations.AddIndex(
            model_name="deadletterrow",
            index=models.Index(
                condition=models.Q(("is_open", False)), fields=["at", "id"], name="hardened_letter_closed"
            ),
        ),
        migrations.AddIndex(
            model_name="deadletterrow",
            index=models.Index(
                condition=models.Q(("is_open", True)),
                fields=["queue", "reason", "is_open"],
                name="hardened_letter_pairs",
            ),
        ),
        migrations.AddIndex(
            model_name="deadletterrow",
            index=models.Index(
                condition=models.Q(("is_open", True)),
                fields=["task", "at", "id", "is_open"],
                name="hardened_letter_task",
            ),
        ),
        migrations.AddIndex(
            model_name="deadletterrow",
            index=models.Index(
                condition=models.Q(("is_open", True)),
                fields=["queue", "at", "id", "is_open"],
                name="hardened_letter_queue",
            ),
        ),
        migrations.AddIndex(
            model_name="deadletterrow",
            index=models.Index(
                condition=models.Q(("is_open", True)),
                fields=["reason", "at", "id", "is_open"],
                name="hardened_letter_reason",
            ),
        ),
        migrations.AddIndex(
            model_name="deadletterrow",
            index=models.Index(
                condition=models.Q(("is_open", True)),
                fields=["fingerprint", "at", "id", "is_open"],
                name="hardened_letter_fingerprint",
            ),
        ),
        migrations.AddIndex(
            model_name="deadletterrow",
            index=models.Index(
                condition=models.Q(("is_open", True)),
                fields=["error_type", "at", "id", "is_open"],
                name="hardened_letter_error",
            ),
        ),
    ]
