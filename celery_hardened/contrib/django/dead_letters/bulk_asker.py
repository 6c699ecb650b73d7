"""Who asked for a bulk action: may that user still? Permissions are taken away while letters wait for their turn."""

from __future__ import annotations

from django.apps import apps

from celery_hardened.contrib.django.models import BulkAction


def withdrawn(action: BulkAction) -> str:
    """Why *action* is to stop, as a sentence; empty: who asked for it may do so still, or there are no users here.

    By the permission itself and the project's authentication backends, as they are now.
    """
    if not apps.is_installed("django.contrib.auth"):
        return ""
    from django.contrib.auth import get_user_model

    user = get_user_model()._default_manager.filter(pk=action.user_id).first()
    if user is None or not user.is_active:
        return f"{action.by}, who asked for it, has no active account any more."
    if not user.has_perm(f"celery_hardened.{action.what}_deadletter"):
        return f"{action.by}, who asked for it, may not {action.what} dead letters any more."
    return ""
