"""Where skipped slots are kept. Whether one is fired is decided where that is, in ``fire.lua``."""

from __future__ import annotations

import json
from dataclasses import asdict

from redis import Redis

from celery_hardened.beat.course import course
from celery_hardened.beat.names import Keys
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.skip import NotSkippedError, Skip, next_to_skip
from celery_hardened.beat.steps import decoded, encoded, milliseconds
from celery_hardened.beat.store import TTL
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Argument, Script

#: Times that a coming slot is named anew because a beat has decided one meanwhile.
_TRIES = 5


class SkipStore:
    """One skip a schedule at most. May be shared by threads.

    Every method raises ``StoreUnavailableError`` if Redis does not answer, or refuses.
    """

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._skip = Script(client, str(__package__), "skip", operation="skipping a slot")
        self._unskip = Script(client, str(__package__), "unskip", operation="taking back the skip of a slot")

    def skip_next(self, schedule: Schedule, *, by: str, why: str, now: float, only: float | None = None) -> Skip:
        """Have the coming slot of *schedule* passed over, and no other.

        Args:
            only: It has to be this one, which somebody was shown; ``None``: whichever it is.

        Raises:
            NotSkippedError: It has no coming slot that can be told, that one is skipped already, or it is not *only*.
        """
        name = schedule.name
        for _ in range(_TRIES):
            with answered("reading a schedule"), self._client.pipeline(transaction=False) as pipe:
                pipe.hget(self._keys.records, encoded(name))
                pipe.hget(self._keys.skips, encoded(name))
                raw, kept = pipe.execute()
            record = None if raw is None else decoded(raw)
            slot = next_to_skip(schedule, course(schedule, record, now), now)
            if only is not None and round(only * 1000) != round(slot * 1000):
                raise NotSkippedError(name, "the slot that you were shown is not the coming one any more")
            there = None if kept is None else Skip.parse(kept)
            if there is not None and there.slot == slot:
                raise NotSkippedError(name, f"its coming slot is skipped already, by {there.by}: {there.why}")
            skip = Skip(slot, by, why, round(now, 3))
            if self.skip(name, skip, record=record):
                return skip
        raise NotSkippedError(name, "it is fired so often that no slot can be named in time; pause it instead")

    def skip(self, name: str, skip: Skip, *, record: str | None) -> bool:
        """Have ``skip.slot`` passed over.

        Args:
            record: The text of the schedule's record, by which that slot is not decided yet.

        Returns:
            ``False``: It has another record by now; nothing was changed.
        """
        said = asdict(skip)
        del said["slot"]
        args: list[Argument] = [encoded(name), encoded(record or ""), milliseconds(skip.slot), json.dumps(said)]
        args.append(milliseconds(TTL))
        return bool(self._skip(keys=[self._keys.skips, self._keys.records, self._keys.stamp], args=args))

    def unskip(self, name: str, slot: float) -> bool:
        """Let *slot* be fired after all. ``False``: it is not skipped, or is over."""
        return bool(self._unskip(keys=[self._keys.skips, self._keys.stamp], args=[encoded(name), milliseconds(slot)]))

    def skips(self) -> dict[str, Skip]:
        """By schedule; also such as are decided by now, see ``Skip.stands``."""
        with answered("reading skipped slots"):
            found = self._client.hgetall(self._keys.skips)
        read = {decoded(name): Skip.parse(value) for name, value in found.items()}
        return {name: skip for name, skip in read.items() if skip is not None}
