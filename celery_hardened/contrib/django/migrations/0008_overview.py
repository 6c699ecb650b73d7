from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):  # type: ignore[misc]
    """The overview in the admin, and who may see it; no table."""

    dependencies = [
        ("celery_hardened", "0007_schedule_permissions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": "overview",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("celery_hardened.deadletterrow",),
        ),
    ]
