"""``python -m celery_hardened.demo``: the main job, live, on a private Valkey with real workers.

Nothing else in the package imports this. ``project/`` is a small shop as a user
would write one; ``scenes/`` breaks it in every way we promise to survive, and
each scene returns what it promised and whether that was so.
"""
