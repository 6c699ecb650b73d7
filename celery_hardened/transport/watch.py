"""Is the worker that should receive messages receiving? Asked by the lease thread, from outside its loop."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from celery_hardened.transport.policy import GIVE_UP, STALLED, Reception, judge_reception

if TYPE_CHECKING:
    from celery_hardened.transport.channel import HardenedChannel
    from celery_hardened.transport.leases import Leases

logger = logging.getLogger("celery_hardened.transport")

#: Exit code of a worker that gave itself up (``EX_TEMPFAIL``): a supervisor should start another.
GAVE_UP = 75


class Watch:
    """A fetch script answers within a second even if there is nothing. A consumer that may take
    messages, has some waiting and got no answer is stuck in a way that no error told of.

    Args:
        channels: Those that consume.

        busy: Does a task run? Then it may hold up the loop (solo pool).
    """

    def __init__(
        self,
        channels: Callable[[], Collection[HardenedChannel]],
        leases: Leases,
        *,
        silence: Callable[[], float],
        busy: Callable[[], bool],
    ) -> None:
        self._channels = channels
        self._leases = leases
        self._silence = silence
        self._busy = busy
        self._looked = time.monotonic()
        self._cut_at: WeakKeyDictionary[HardenedChannel, float] = WeakKeyDictionary()
        self._calm = 0

    def look(self) -> None:
        """Reconnect what is stuck, or end the process. Raises ``StoreUnavailableError``."""
        now = time.monotonic()
        stood_still, self._looked = now - self._looked > STALLED / 2, now
        # Twice in a row: a look may fall between two tasks of the solo pool.
        self._calm = 0 if self._busy() else self._calm + 1
        for channel in self._channels():
            if stood_still:
                # The whole process did (a frozen container, swap): its loop has to get its turn first.
                channel.answered()
            idle = channel.idle
            if idle < STALLED or channel.closed:
                continue
            lists = channel.lists(tuple(channel.active_queues))[0]
            seen = Reception(
                idle=idle,
                waiting=self._leases.scripts.length(lists),
                hungry=bool(lists) and channel.credit() > 0,
                busy=self._silence() >= STALLED and self._calm < 2,
            )
            verdict = judge_reception(seen)
            if verdict == "exit" and now - self._cut_at.get(channel, now) < GIVE_UP:
                verdict = "reconnect"
            if verdict == "reconnect":
                logger.error(
                    "no answer from Redis for %.0f s while %s messages wait: this worker reconnects", idle, seen.waiting
                )
                self._cut_at.setdefault(channel, now)
                self._cut(channel)
            elif verdict == "exit":
                logger.critical(
                    "no message taken for %.0f s while %s wait, and reconnecting did not help: this worker ends with "
                    "exit code %s, so that its supervisor starts another. What it holds goes back",
                    idle,
                    seen.waiting,
                    GAVE_UP,
                )
                self._leases.close()
                os._exit(GAVE_UP)

    @staticmethod
    def _cut(channel: HardenedChannel) -> None:
        """Shut its sockets down: the loop that reads them sees the end of the connection."""
        for sock in channel.sockets():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
