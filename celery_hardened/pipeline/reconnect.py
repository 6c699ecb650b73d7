"""A worker whose broker is away comes back to it, however long it was away.

Celery waits two seconds longer after each try, up to thirty, and ends the worker after a
hundred: a broker that returns is found half a minute late, and one that was away for
three quarters of an hour is not found at all.

Here the waits stay below `LONGEST_WAIT` and there is no last try. One try takes no longer than
the connection's own time-outs (``broker_connection_timeout``, and on Redis
``socket_connect_timeout`` and ``socket_timeout``), so a worker that knows that its connection is
lost consumes again at most one try and one wait after its broker can be reached.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery_hardened.hardening import Hardening
from celery_hardened.preset import set_by_user

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer as _Consumer
else:
    _Consumer = object  # a mix-in, see consumer.py

#: Seconds between two tries, at most; between hosts of a failover list there is no wait.
LONGEST_WAIT = 3.0

#: Seconds that each wait is longer than the one before.
STEP = 0.5

#: In Celery's place for "3/100".
NEXT_STEP = "Trying again {when}... ({retries}, without end)"


class Reconnecting(_Consumer):  # type: ignore[misc]
    """Mix-in for ``celery.worker.consumer.Consumer``: it connects to its broker sooner or later."""

    def ensure_connected(self, conn: Any) -> Any:
        """
        *conn*, connected. Called at the start and after each loss, for reading and for writing.

        Celery's own behaviour is left whole if ``broker_connection_max_retries`` is a number of
        the user's: it was chosen for Celery's waits, and would be used up early with ours. Also
        with ``broker_connection_retry`` off, and in a dry run.

        Raises:
            WorkerShutdown, WorkerTerminate: The worker is told to stop (kombu looks every second of
                a wait, and after each try).
            Exception: What kombu does not count as a connection error; the worker ends.
        """
        if Hardening.expect(self.app).settings.observe or tries_are_counted(self.app.conf):
            return super().ensure_connected(conn)
        super().ensure_connected(_Endless(conn))
        return conn


def tries_are_counted(conf: Any) -> bool:
    """Did the user set a number of tries?"""
    return set_by_user(conf, "broker_connection_max_retries") and conf.broker_connection_max_retries is not None


class _Endless:
    """A connection whose ``ensure_connection`` has our waits and no last try, whatever it is asked for."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def ensure_connection(
        self,
        errback: Callable[..., Any],
        max_retries: int | None = None,  # noqa: ARG002 - Celery's signature
        *,
        callback: Callable[[], Any],
    ) -> Any:
        # The dice: workers that were cut off at one moment do not come back in step.
        first = random.uniform(0.1, 2 * STEP)
        return self._conn.ensure_connection(
            lambda error, wait: errback(error, wait, next_step=NEXT_STEP),
            None,
            interval_start=first,
            interval_step=STEP,
            interval_max=LONGEST_WAIT - first,  # kombu 5.6 waits up to the sum of the two
            callback=callback,
        )
