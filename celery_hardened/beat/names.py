"""Redis keys and task ids of schedules. Pure.

All keys of one app's beats have the hash tag ``{beat}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID, uuid4, uuid5

#: Of the task ids of schedules. Never to be changed: the same slot must have the same id in every release.
NAMESPACE = UUID("6f4d2c1e-5b7a-5e0f-9a39-2d1d6a4c8e11")


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names for one *prefix* (``hardening.prefix``)."""

    prefix: str

    def _key(self, name: str) -> str:
        return f"{self.prefix}:{{beat}}:{name}"

    @property
    def leader(self) -> str:
        return self._key("leader")

    @property
    def term(self) -> str:
        return self._key("term")

    @property
    def wake(self) -> str:
        return self._key("wake")

    @property
    def records(self) -> str:
        return self._key("records")

    @property
    def paused(self) -> str:
        return self._key("paused")

    @property
    def skips(self) -> str:
        return self._key("skips")

    @property
    def stamp(self) -> str:
        return self._key("stamp")

    @property
    def problems(self) -> str:
        return self._key("problems")

    @property
    def revoke(self) -> str:
        return self._key("revoke")

    @property
    def replaces(self) -> str:
        """Runs that a claim is to replace."""
        return self._key("replaces")

    @property
    def runs(self) -> str:
        """Reports of workers that nobody has read yet."""
        return self._key("runs")

    def history(self, schedule: str) -> str:
        return self._key(f"history:{schedule}")

    def window(self, schedule: str) -> str:
        """The deduplication window of an overlap policy; see ``window_of``."""
        return f"{self.prefix}:dedup:{{{window_of(schedule)}}}"


def window_of(schedule: str) -> str:
    """Name of the window that a run of *schedule* holds until it ends, as the store of windows knows it."""
    return f"schedule:{schedule}"


@lru_cache(maxsize=1024)  # each fire asks several times
def task_id_of(schedule: str, slot: float) -> str:
    """The id of the task of one slot: whoever publishes it, and however often."""
    return str(uuid5(NAMESPACE, f"{schedule}\0{round(slot * 1000)}"))


def triggered_id(schedule: str) -> str:
    """A new id for a run by hand."""
    return str(uuid5(NAMESPACE, f"{schedule}\0trigger\0{uuid4().hex}"))


def once_key(schedule: str, slot: float) -> str:
    """Idempotency key of one slot, where a broker may get its message twice."""
    return f"schedule:{schedule}:{round(slot * 1000)}"
