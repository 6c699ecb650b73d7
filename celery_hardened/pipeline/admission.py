"""Is this message a task? Asked before Celery takes it apart, pure.

Celery meets a malformed message in the middle of its strategy: the exception
ends the worker, or leaks a pool slot, or is taken for a lost connection. So
everything it relies on is looked at first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import MAXYEAR, MINYEAR, datetime, timezone
from typing import Any

from celery.app.task import Context
from celery.utils.time import maybe_iso8601

_EMBED_LISTS = ("callbacks", "errbacks", "chain")
_EMBED = frozenset({*_EMBED_LISTS, "chord"})


def header_problem(headers: Mapping[str, Any], *, now: datetime, max_eta: float) -> str | None:
    """What is wrong with the headers of a protocol 2 message, or ``None``."""
    for name in ("id", "task"):
        if not isinstance(headers.get(name), str) or not headers[name]:
            return f"header {name!r} is {_kind(headers.get(name))}, not a non-empty string"
    retries = headers.get("retries")
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
        return f"header 'retries' is {_kind(retries)}, not a count"
    problem = _timelimit_problem(headers.get("timelimit"))
    if problem:
        return problem
    for name in ("root_id", "parent_id", "group", "shadow"):
        if headers.get(name) is not None and not isinstance(headers[name], str):
            return f"header {name!r} is {_kind(headers[name])}, not a string"
    for name in ("eta", "expires"):
        problem, moment = _moment(name, headers.get(name))
        if problem:
            return problem
        if name == "eta" and moment is not None and (moment - now).total_seconds() > max_eta:
            return f"header 'eta' is {moment.isoformat()}, further away than hardened_max_eta ({max_eta:.0f} s)"
    if not isinstance(headers.get("stamped_headers") or [], (list, tuple)):
        return f"header 'stamped_headers' is {_kind(headers['stamped_headers'])}, not a list"
    if not isinstance(headers.get("stamps") or {}, Mapping):
        return f"header 'stamps' is {_kind(headers['stamps'])}, not a mapping"
    return None


def body_problem(payload: Any) -> str | None:
    """What is wrong with the decoded body of a protocol 2 message, or ``None``."""
    if isinstance(payload, Mapping):
        return None if "args" in payload else "the body is a mapping without 'args'"
    if not isinstance(payload, (list, tuple)):
        return f"the body is {_kind(payload)}, not [args, kwargs, embed]"
    if len(payload) != 3:
        return f"the body has {len(payload)} parts, not the three of [args, kwargs, embed]"
    args, kwargs, embed = payload
    if not isinstance(args, (list, tuple)):
        return f"the args are {_kind(args)}, not a list"
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        return f"the kwargs are {_kind(kwargs)}, not a mapping of names"
    if embed is None:
        return "the embed is null, not a mapping"
    if not isinstance(embed, Mapping) or not all(isinstance(name, str) for name in embed):
        return f"the embed is {_kind(embed)}, not a mapping of names"
    forged = sorted(name for name in embed if name not in _EMBED and hasattr(Context, name))
    if forged:
        # Celery lays the embed over the request: one that says "is_eager" would be believed.
        return f"the embed holds {forged[0]!r}, which is not its to say"
    for name in _EMBED_LISTS:
        links = embed.get(name)
        if links is not None and not (isinstance(links, (list, tuple)) and all(isinstance(x, Mapping) for x in links)):
            return f"embed {name!r} is {_kind(links)}, not a list of signatures"
    if embed.get("chord") is not None and not isinstance(embed["chord"], Mapping):
        return f"embed 'chord' is {_kind(embed['chord'])}, not a signature"
    return None


def _timelimit_problem(limits: Any) -> str | None:
    if limits is None or limits in ((), []):
        return None
    if not isinstance(limits, (list, tuple)) or len(limits) != 2:
        return f"header 'timelimit' is {_kind(limits)}, not a pair"
    for limit in limits:
        number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if limit is not None and not (number and 0 <= limit < math.inf):  # NaN would upset the pool's timers
            return f"header 'timelimit' holds {_kind(limit)}, not seconds"
    return None


def _moment(name: str, raw: Any) -> tuple[str | None, datetime | None]:
    if raw is None:
        return None, None
    if not isinstance(raw, (str, datetime)):
        return f"header {name!r} is {_kind(raw)}, not a time", None
    try:
        moment = maybe_iso8601(raw)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        if not MINYEAR < moment.year < MAXYEAR:
            raise OverflowError("no time zone can be applied at the ends of the calendar")
    except (ValueError, TypeError, AttributeError, OverflowError):
        return f"header {name!r} is no ISO 8601 time", None
    return None, moment


def _kind(value: Any) -> str:
    """Name a value without showing it: it may hold what must not be logged."""
    if value is None or isinstance(value, bool):
        return repr(value)
    return f"of type {type(value).__name__}"
