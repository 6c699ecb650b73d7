"""The shop the demo is about. Its workers run in this folder: ``celery -A shop worker``."""
