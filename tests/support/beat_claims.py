"""What the record of a schedule says of a slot that is on its way to the broker."""

from __future__ import annotations

from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.record import Record
from celery_hardened.beat.store import BeatStore


def is_claimed(url: str, prefix: str, schedule: str) -> bool:
    """
    Is a beat about to publish a run of *schedule*, or does it not know yet whether it has?

    Until it knows, a next beat may publish the run once more.

    Args:
        url: Redis of the records.
        prefix: ``hardened_key_prefix``.
    """
    with Redis.from_url(url) as redis:
        text = BeatStore(redis, Keys(prefix), history=0).record(schedule)
    return text is not None and Record.parse(text).pending is not None
