"""Windows of deduplication, as the pipelines have them at hand: their store, their renewal, how long they last."""

from __future__ import annotations

from typing import Any

from billiard import current_process

from celery_hardened.dedup.contract import WindowStore
from celery_hardened.dedup.memory import InMemoryWindowStore
from celery_hardened.dedup.moment import seconds_until
from celery_hardened.dedup.noted import Noted
from celery_hardened.dedup.policy import held_for
from celery_hardened.dedup.renewal import Renewal
from celery_hardened.hardening import Hardening
from celery_hardened.marks import Marks


def windows(hardening: Hardening) -> WindowStore:
    """The store of windows: in Redis, unless nothing need be kept."""
    found: WindowStore | None = hardening.__dict__.get(_STORE)
    if found is None:
        settings = hardening.settings
        if settings.dead_letter_store == "memory" and settings.redis_url is None:
            found = InMemoryWindowStore()
        else:
            from celery_hardened.dedup.store import RedisWindowStore  # redis is slow to import

            found = RedisWindowStore(hardening.redis, prefix=hardening.prefix)
        found = hardening.__dict__.setdefault(_STORE, found)
    return found


def renewal(hardening: Hardening) -> Renewal:
    """Renews leases and frees keys in this process."""
    found: Renewal | None = hardening.__dict__.get(_RENEWAL)
    if found is None:
        made = Renewal(lambda: windows(hardening), lease=hardening.settings.lease)
        found = hardening.__dict__.setdefault(_RENEWAL, made)
    return found


_STORE, _RENEWAL, _BEGUN, _HANDED_ON = "_dedup_windows", "_dedup_renewal", "_dedup_begun", "_dedup_handed_on"


def begun(hardening: Hardening) -> Noted:
    """Keys that were freed at the start of a body that runs here."""
    found: Noted = hardening.__dict__.setdefault(_BEGUN, Noted())
    return found


def handed_on(hardening: Hardening) -> Noted:
    """Keys that a task which runs here has given to the one that replaces it, under its own id."""
    found: Noted = hardening.__dict__.setdefault(_HANDED_ON, Noted())
    return found


def told_by(marks: Marks) -> float:
    """Which message a run is of, as ``WindowStore`` is told: each publish has its own, and a retry's is later.

    If the clock of the worker that published a retry is behind its producer's, the retry counts as told of, and
    its window is not leased before it begins.
    """
    return marks.published or 0.0


def in_pool_process() -> bool:
    return bool(current_process()._name != "MainProcess")


def ttl_of_run(hardening: Hardening, task: Any) -> float:
    """Seconds that a window is held from a start of *task* on, if nothing is heard of it."""
    settings = hardening.settings
    return settings.queue_retention + (task.time_limit or 0.0) + settings.lease


def ttl_of_publish(hardening: Hardening, task: Any, options: dict[str, Any], *, window: float | None = None) -> float:
    """Seconds that a window is held, from the publish of *task* with *options* on, if nothing is heard of it.

    Args:
        options: Of ``send_task``.
        window: Of ``until="window"`` only.
    """
    settings, app = hardening.settings, hardening.app
    delay = options.get("countdown")
    if delay is None:
        delay = seconds_until(options.get("eta"), now=app.now(), timezone=app.timezone)
    return held_for(
        window=window,
        retention=settings.queue_retention,
        lease=settings.lease,
        time_limit=options.get("time_limit") or task.time_limit,
        delay=float(delay or 0.0),
        expires=seconds_until(options.get("expires", task.expires), now=app.now(), timezone=app.timezone),
    )
