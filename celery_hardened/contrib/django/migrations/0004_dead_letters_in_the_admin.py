from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):  # type: ignore[misc]
    """Permissions of the admin's section of dead letters; no table."""

    dependencies = [
        ("celery_hardened", "0003_dead_letters"),
    ]

    operations = [
        migrations.CreateModel(
            name="DeadLetter",
            fields=[],
            options={
                "verbose_name": "dead letter",
                "proxy": True,
                "default_permissions": ("view",),
                "permissions": [
                    ("redrive_deadletter", "Can send dead letters again"),
                    ("discard_deadletter", "Can discard dead letters"),
                    ("see_arguments", "Can see the arguments of dead letters"),
                ],
                "indexes": [],
                "constraints": [],
            },
            bases=("celery_hardened.deadletterrow",),
        ),
    ]
