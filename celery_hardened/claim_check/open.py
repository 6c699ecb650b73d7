"""A payload store by its URL."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from celery_hardened.claim_check.contract import PayloadStore
from celery_hardened.errors import ConfigurationError

_REDIS = ("redis", "rediss", "sentinel", "redis+socket", "unix")


def open_store(
    url: str, *, redis: Callable[[str | None], Any], prefix: Callable[[], str], usual: float = math.inf
) -> PayloadStore:
    """The store that *url* (``hardened_payload_store``) names. Nothing is connected to yet.

    Args:
        url: ``file:///path`` · ``redis:`` (where our records are) or the URL of another Redis ·
            ``django:`` or ``django:alias`` · ``memory:`` (this process alone) · any fsspec URL.
        redis: Makes a client: of our Redis for ``None``, else of the URL.
        prefix: First part of every key of ours.
        usual: Seconds that a sweep will leave everything there; see the contract.

    Raises:
        ConfigurationError: It is no such URL, or what it needs is not installed.
    """
    scheme, colon, rest = str(url).partition(":")
    if not colon:
        raise ConfigurationError(
            f"hardened_payload_store is {url!r}, which is no URL. Write file:///path, redis:, django:alias, "
            f"or a URL that fsspec knows."
        )
    # What a store needs is imported for that store alone.
    if scheme == "file":
        from celery_hardened.claim_check.file import FilePayloadStore

        return FilePayloadStore(_folder(url), usual=usual)
    if scheme in _REDIS:
        from celery_hardened.claim_check.redis import RedisPayloadStore

        try:
            client = redis(url if rest else None)
        except ConfigurationError as problem:
            text = str(problem).replace("hardened_redis_url", "hardened_payload_store") if rest else str(problem)
            raise ConfigurationError(text) from None
        return RedisPayloadStore(client, prefix=prefix())
    if scheme == "django":
        from celery_hardened.claim_check.django import DjangoPayloadStore

        return DjangoPayloadStore(rest.strip("/") or "default", usual=usual)
    if url == "memory:":
        from celery_hardened.claim_check.memory import InMemoryPayloadStore

        return InMemoryPayloadStore(usual=usual)
    from celery_hardened.claim_check.fsspec import FsspecPayloadStore

    return FsspecPayloadStore(url, usual=usual)


def _folder(url: str) -> Path:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or parts.query or parts.fragment:
        raise ConfigurationError(
            f"hardened_payload_store is {url!r}; a directory is written file:///absolute/path, "
            f"the same on every machine."
        )
    return path
