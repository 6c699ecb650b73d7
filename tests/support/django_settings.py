"""Settings of the tests' Django project, as a module: for worker processes, by DJANGO_SETTINGS_MODULE.

Tests of this process call ``django_project.configure()`` instead: the variable would make every
Celery app of the process a Django app.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

#: Folder of the SQLite files. A test hands it on to its workers (``django_project.environment``).
FOLDER_VARIABLE = "HARDENED_TEST_DJANGO_FOLDER"

#: A ``postgresql://`` URL; there is a database ``postgres`` besides then.
POSTGRES_VARIABLE = "HARDENED_TEST_DJANGO_POSTGRES"


def _folder() -> Path:
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    made = tempfile.mkdtemp(prefix="hardened-django-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def postgres(url: str) -> dict[str, Any]:
    """What ``DATABASES`` says of the server at *url*."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


def _sqlite(name: str) -> dict[str, Any]:
    # Writers of two processes wait for each other, rather than fail.
    options = {"timeout": 60, "transaction_mode": "IMMEDIATE"}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / f"{name}.sqlite3", "OPTIONS": options}


FOLDER = _folder()
SECRET_KEY = "of the tests"
# A lazy storage of Django's own looks for it as soon as anybody looks at all objects of the process.
STATIC_URL = "/static/"

USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "django_celery_beat",
    "tests.support.django_shop",
    "celery_hardened.contrib.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
# To hash one slowly takes longer than a test.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ROOT_URLCONF = "tests.support.django_shop.urls"
ALLOWED_HOSTS = ["*"]
DATABASES = {"default": _sqlite("default"), "other": _sqlite("other")}
if os.environ.get(POSTGRES_VARIABLE):
    DATABASES["postgres"] = postgres(os.environ[POSTGRES_VARIABLE])
