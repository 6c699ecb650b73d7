from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """The table of finished work."""

    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="FinishedWork",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("fingerprint", models.CharField(max_length=64)),
                ("task_id", models.TextField()),
                ("result", models.BinaryField(null=True)),
                ("finished", models.BooleanField()),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(db_index=True)),
            ],
            options={"db_table": "celery_hardened_finished_work", "verbose_name_plural": "finished work"},
        ),
    ]
