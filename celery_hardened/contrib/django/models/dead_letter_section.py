"""What the admin's section of dead letters is called, and who may do what there. It has no table of its own."""

from __future__ import annotations

from celery_hardened.contrib.django.models.dead_letter import DeadLetterRow


class DeadLetter(DeadLetterRow):
    """Names and permissions only: letters are read and changed through their store, whichever that is.

    A proxy, because Django's own commands (``dumpdata``) ask a model without a table for its rows.
    """

    class Meta:
        proxy = True
        verbose_name = "dead letter"
        default_permissions = ("view",)
        permissions = [
            ("redrive_deadletter", "Can send dead letters again"),
            ("discard_deadletter", "Can discard dead letters"),
            ("see_arguments", "Can see the arguments of dead letters"),
            ("edit_arguments", "Can change the arguments of dead letters as they are sent again"),
        ]
