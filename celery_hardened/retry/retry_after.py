"""``Retry-After``: when the other side asked to be called again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from celery_hardened.retry.anatomy import attribute, leaves

_HEADER = "retry-after"
_SECONDS = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")


def retry_after(error: BaseException, *, now: float) -> float | None:
    """Read how long *error* asks to wait.

    Looked for in its ``retry_after``, the headers of its ``response``, its own
    ``headers``, and the response metadata of botocore; the first that makes sense
    counts. A number (or text) is seconds; a time (or an HTTP date) is compared
    with *now*. A group asks for the longest wait among its members.

    Args:
        now: Seconds since the epoch.

    Returns:
        Seconds from *now*, at least 0; ``None`` if it does not ask. Never raises.
    """
    members = leaves(error)
    if members is None:
        return _asked(error, now)
    waits = [wait for wait in (_asked(member, now) for member in members) if wait is not None]
    return max(waits, default=None)


def _asked(error: BaseException, now: float) -> float | None:
    response = attribute(error, "response")
    metadata = _item(response, "ResponseMetadata")
    found = (
        attribute(error, "retry_after"),
        _header(attribute(response, "headers")),
        _header(attribute(error, "headers")),
        _header(_item(metadata, "HTTPHeaders")),
    )
    for value in found:
        wait = _seconds(value, now)
        if wait is not None:
            return wait
    return None


def _seconds(value: object, now: float) -> float | None:
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("latin-1")
    if isinstance(value, str):
        value = _read(value.strip())
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, datetime):
        value = _timestamp(value)
        value = None if value is None else value - now
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        wait = float(value)
    except OverflowError:
        return None
    return max(0.0, wait) if math.isfinite(wait) else None


def _read(written: str) -> float | datetime | None:
    if _SECONDS.fullmatch(written):
        return float(written)
    try:
        return parsedate_to_datetime(written)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _timestamp(moment: datetime) -> float | None:
    try:
        # An HTTP date without a zone is UTC: RFC 9110 allows no other.
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


def _header(headers: object) -> object:
    """Find the header, whatever the case of its name and the type of the mapping."""
    try:
        for pair in _pairs(headers):
            name = pair[0].decode("latin-1") if isinstance(pair[0], bytes) else pair[0]
            if isinstance(name, str) and name.lower() == _HEADER:
                return pair[1]
    except Exception:  # noqa: BLE001  a foreign mapping may raise anything
        return None
    return None


def _pairs(headers: object) -> Iterable[Any]:
    # By method, not by type: http.client.HTTPMessage has items() and is no Mapping.
    items = attribute(headers, "items")
    if callable(items):
        pairs: Iterable[Any] = items()
        return pairs
    return headers if isinstance(headers, (list, tuple)) else ()


def _item(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, dict) else None
