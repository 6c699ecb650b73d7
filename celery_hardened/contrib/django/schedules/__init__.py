"""Schedules kept in django-celery-beat's tables: read, watched, and written back to by one thread."""
