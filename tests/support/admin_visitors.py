"""Who visits the admin in tests."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client


def logged_in(user: Any, **options: Any) -> Client:
    made = Client(**options)
    made.force_login(user)
    return made


def ada(**options: Any) -> Client:
    """Logged in, with all permissions."""
    return logged_in(User.objects.create_superuser("ada", password="x"), **options)


def staff(*permissions: str, **options: Any) -> Client:
    """Logged in as one of the staff who has these permissions, and no others."""
    one = User.objects.create_user(f"u{User.objects.count()}", password="x", is_staff=True)
    one.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    assert one.user_permissions.count() == len(permissions)
    return logged_in(one, **options)
