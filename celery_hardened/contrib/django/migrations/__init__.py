"""Migrations of the tables of ``celery_hardened.contrib.django``."""
