"""What the admin's log says of bulk actions: who asked for one, stopped it, and how it ended."""

from __future__ import annotations

from django.apps import apps

from celery_hardened.cli import text
from celery_hardened.contrib.django.models import BulkAction


def summary(action: BulkAction) -> str:
    """Its counts, as a sentence."""
    verb = "would be sent" if action.dry_run else "sent" if action.what == "redrive" else "discarded"
    said = [f"{action.done} of {text.amount(action.total)} {verb}"]
    for number, what in ((action.refused, "refused"), (action.failed, "failed"), (action.left, "left alone")):
        if number:
            said.append(f"{number} {what}")
    return f"{', '.join(said)}."


def note(action: BulkAction, user_id: object, message: str) -> None:
    """Write *message* about *action* into the log, if there is one and the user still exists."""
    if not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.admin.options import get_content_type_for_model
    from django.contrib.auth import get_user_model

    from celery_hardened.contrib.django.models import DeadLetter

    users = get_user_model()
    user = users._default_manager.filter(pk=user_id).first()
    if user is None:
        return
    LogEntry.objects.create(
        user_id=user.pk,
        content_type_id=get_content_type_for_model(DeadLetter).pk,
        object_id=None,
        object_repr=str(action),
        action_flag=CHANGE,
        change_message=message,
    )


def note_asked(action: BulkAction) -> None:
    note(action, action.user_id, f"{action.kind} of {text.amount(action.total)} begun. Reason: {action.why}")


def note_end(action: BulkAction, state: str, why: str) -> None:
    note(action, action.user_id, f"{action.kind} {state}: {summary(action)} {why} Reason: {action.why}")
