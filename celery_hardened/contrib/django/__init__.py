"""The Django app ``celery_hardened.contrib.django``; its label is ``celery_hardened``."""
