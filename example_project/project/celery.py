"""The Celery app. One line hardens it."""

import os

from celery import Celery

from celery_hardened import harden

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = harden(Celery("project"))
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
