"""A rule on ``CACHES``: ``cache.clear()`` empties a whole Redis database, queues and records included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error

from celery_hardened.contrib.django.checks.project import Project, Rule, page

_HERE = frozenset({"localhost", "127.0.0.1", "::1", ""})
_PORT = 6379


def not_in_the_cache(project: Project) -> Iterator[CheckMessage]:
    """E008."""
    of = {
        "the broker": project.conf.broker_url,
        "hardened_redis_url": project.settings.redis_url,
        "the result backend": project.conf.result_backend,
    }
    for alias, cache in django_settings.CACHES.items():
        backend = str(cache.get("BACKEND", "")).lower()
        if "redis" not in backend and "valkey" not in backend:
            continue
        cached = set(_places(cache.get("LOCATION"), (cache.get("OPTIONS") or {}).get("db")))
        shared = {what: found for what, url in of.items() for found in _places(url) if found in cached}
        for what, (host, port, db) in shared.items():
            yield Error(
                f"The cache {alias!r} is in the same Redis database as {what} ({host}:{port}, database {db}): "
                f"cache.clear() deletes everything in it, waiting tasks and dead letters included.",
                hint=(
                    "Give the cache another database number, or better another server, which may evict keys when it is "
                    f"full. {page('Check your Django project')}"
                ),
                id="celery_hardened.E008",
            )


def _places(urls: Any, db: Any = None) -> Iterator[tuple[str, int, int]]:
    """Host, port and database of each Redis URL; nothing of what is no such URL. Passwords are left out."""
    if isinstance(urls, str):
        urls = urls.replace(";", ",").split(",")
    for url in urls or ():
        parts = urlsplit(str(url).strip())
        if parts.scheme not in ("redis", "rediss", "valkey", "valkeys"):
            continue
        try:
            port = parts.port or _PORT
            number = int(parts.path.strip("/") or db or 0)
        except ValueError:
            continue  # malformed: its own library says so
        host = parts.hostname or ""
        yield "localhost" if host in _HERE else host, port, number


RULES: tuple[Rule, ...] = (not_in_the_cache,)
