"""Whether the leader is gone before its lease has run out: a killed process closes its connection at once."""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery_hardened.beat.leader_store import Holder, LeaderStore

logger = logging.getLogger("celery_hardened.beat")


class Gone:
    """What a standby knows of the leader's connection.

    A connection that is missed once may be one that was cut: its leader comes back
    with another. So it is gone when it is missed for some time.

    Args:
        after: Seconds for which it has to be missed.
    """

    def __init__(self, store: LeaderStore, monotonic: Callable[[], float], *, ttl: float, after: float) -> None:
        self._store = store
        self._monotonic = monotonic
        self._ttl = ttl
        self._after = after
        self._forbidden = False
        self.forget()

    def forget(self) -> None:
        """Nothing is known: Redis did not answer, or it may be another server."""
        self._missed: tuple[str, str] | None = None
        self._since = 0.0

    def is_gone(self, holder: Holder) -> bool:
        """Is its connection gone? Raises ``StoreUnavailableError``."""
        if not holder.client:
            self.forget()
            return False
        connected = self._store.is_connected(holder.client)
        if connected is None:
            self._say_forbidden()
        if connected is not False:
            self.forget()
            return False
        now = self._monotonic()
        if self._missed != (holder.owner, holder.client):
            self._missed, self._since = (holder.owner, holder.client), now
        return now - self._since >= self._after

    def _say_forbidden(self) -> None:
        if not self._forbidden:
            self._forbidden = True
            logger.warning(
                "Redis does not tell whether the leading beat is connected (CLIENT LIST): one that is killed "
                "is replaced when its lease has run out, after %g s instead of two",
                self._ttl,
            )
