"""What the admin's overview is called, and who may see it. It has no table of its own."""

from __future__ import annotations

from celery_hardened.contrib.django.models.dead_letter import DeadLetterRow


class Overview(DeadLetterRow):
    """A name and a permission only: what the page shows is read from the broker, from Redis and from stores.

    A proxy, because Django's own commands (``dumpdata``) ask a model without a table for its rows.
    """

    class Meta:
        proxy = True
        verbose_name = "overview"
        verbose_name_plural = "overview"
        default_permissions = ("view",)
