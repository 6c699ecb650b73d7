"""Schedules: when each is due, who leads, and what has been fired. ``pipeline/beat.py`` holds the order."""
