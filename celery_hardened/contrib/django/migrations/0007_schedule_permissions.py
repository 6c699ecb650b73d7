from __future__ import annotations

from typing import Any

from django.apps import apps as installed
from django.conf import settings
from django.db import migrations, router

PERMISSIONS = (
    ("run_schedule", "Can run schedules now"),
    ("pause_schedule", "Can pause and resume schedules"),
    ("skip_schedule", "Can skip the next slot of schedules"),
    ("backfill_schedule", "Can backfill schedules"),
)

# The app may be installed for its tables alone, without users.
_WITH_USERS = installed.is_installed("django.contrib.auth") and installed.is_installed("django.contrib.contenttypes")


def grant(apps: Any, schema_editor: Any) -> None:
    """Who may change periodic tasks could do all of this until now, and can go on.

    The permissions are made here, and not by Django after the migration, as they are to be given to somebody.
    """
    alias = schema_editor.connection.alias
    found = _models(apps, alias)
    if found is None:
        return
    permission, content_type = found
    ours, _ = content_type.objects.using(alias).get_or_create(app_label="celery_hardened", model="schedulepolicy")
    made = [
        permission.objects.using(alias).get_or_create(content_type=ours, codename=codename, defaults={"name": name})[0]
        for codename, name in PERMISSIONS
    ]
    change = permission.objects.using(alias).filter(
        content_type__app_label="django_celery_beat", content_type__model="periodictask", codename="change_periodictask"
    )
    for holder, permissions in _holders(apps, permission):
        lines = permissions.through.objects.using(alias)
        pks = lines.filter(permission__in=change).values_list(f"{holder}_id", flat=True).distinct()
        rows = [
            permissions.through(**{f"{holder}_id": pk, "permission_id": one.pk}) for pk in list(pks) for one in made
        ]
        lines.bulk_create(rows, batch_size=500, ignore_conflicts=True)


def revoke(apps: Any, schema_editor: Any) -> None:
    """Take the permissions away again, from whoever has them."""
    alias = schema_editor.connection.alias
    found = _models(apps, alias)
    if found is None:
        return
    permission, _ = found
    permission.objects.using(alias).filter(
        content_type__app_label="celery_hardened",
        content_type__model="schedulepolicy",
        codename__in=[codename for codename, _ in PERMISSIONS],
    ).delete()


def _models(apps: Any, alias: str) -> tuple[Any, Any] | None:
    """Of permissions and of content types; ``None``: they are not kept in this database."""
    if not _WITH_USERS:
        return None
    permission = apps.get_model("auth", "Permission")
    if not router.allow_migrate_model(alias, permission):
        return None
    return permission, apps.get_model("contenttypes", "ContentType")


def _holders(apps: Any, permission: Any) -> list[tuple[str, Any]]:
    """Who holds permissions: the name of its column in the table between, and the field."""
    found = []
    for label, name in (("auth.Group", "permissions"), (settings.AUTH_USER_MODEL, "user_permissions")):
        model = apps.get_model(label)
        # A user model of the project's own need not have any.
        if any(field.name == name for field in model._meta.many_to_many):
            field = model._meta.get_field(name)
            if field.remote_field.model is permission:
                found.append((field.m2m_field_name(), getattr(model, name)))
    return found


class Migration(migrations.Migration):  # type: ignore[misc]
    """Who may run, pause, skip and backfill schedules: four permissions, given to all who may change them."""

    dependencies = [
        ("celery_hardened", "0006_redrives"),
        *(
            [
                ("auth", "0001_initial"),
                ("contenttypes", "0002_remove_content_type_name"),
                migrations.swappable_dependency(settings.AUTH_USER_MODEL),
            ]
            if _WITH_USERS
            else []
        ),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="schedulepolicy",
            options={
                "permissions": PERMISSIONS,
                "verbose_name": "policy of missed and overlapping runs",
                "verbose_name_plural": "policies of missed and overlapping runs",
            },
        ),
        migrations.RunPython(grant, revoke),
    ]
