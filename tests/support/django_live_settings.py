"""Settings of the Django site that browsers visit: a server of its own, with a strict policy on what pages may load."""

from __future__ import annotations

import os

from tests.support import django_settings as base

SECRET_KEY = base.SECRET_KEY
USE_TZ, TIME_ZONE = base.USE_TZ, base.TIME_ZONE
DEFAULT_AUTO_FIELD = base.DEFAULT_AUTO_FIELD
PASSWORD_HASHERS = base.PASSWORD_HASHERS
ALLOWED_HOSTS = ["127.0.0.1"]
TEMPLATES = base.TEMPLATES
STATIC_URL = base.STATIC_URL
INSTALLED_APPS = ["django.contrib.staticfiles", *base.INSTALLED_APPS]
MIDDLEWARE = ["tests.support.django_live_web.strict", *base.MIDDLEWARE]
ROOT_URLCONF = "tests.support.django_live_web"
_database = os.environ.get(base.POSTGRES_VARIABLE)
DATABASES = {"default": base.postgres(_database) if _database else base.DATABASES["default"]}
