"""A worker whose broker is away comes back to it, however long it was away.

Celery waits two seconds longer after each try, up to thirty, and ends the worker after a
hundred: a broker that returns is found half a minute late, and one that was away for
three quarters of an hour is not found at all. Here the waits stay below `LONGEST_WAIT` and
there is no last try.

One try takes no longer than the connection's own time-outs (``broker_connection_timeout``, and
on Redis ``socket_connect_timeout`` and ``socket_timeout``), so a worker that knows that its
connection is lost consumes again at most one try and one wait after its broker can be reached.

A Redis that takes connections and refuses work (READONLY after a fail-over, MISCONF, OOM) is
away too. Celery ends the worker then.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from celery.worker.state import maybe_shutdown
from redis.exceptions import ResponseError

from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.loop_tick import Ticking
from celery_hardened.preset import set_by_user

logger = logging.getLogger("celery_hardened.consumer")

#: Seconds between two tries, at most; between hosts of a failover list there is no wait.
LONGEST_WAIT = 3.0

#: Seconds that each wait is longer than the one before.
STEP = 0.5

#: A connection lost again within so many seconds was not of much use, and the next one is waited for.
SOON = 10.0

#: In Celery's place for "3/100".
NEXT_STEP = "Trying again {when}... ({retries}, without end)"


class Reconnecting(Ticking):
    """Mix-in for ``celery.worker.consumer.Consumer``: it connects to its broker sooner or later."""

    connection_errors: tuple[type[BaseException], ...]

    def __init__(self, *args: Any, **options: Any) -> None:
        app = options.get("app")
        # Without an event hub Celery sets it to None, for a bug that gevent had once: a try would have no end.
        self._patience = None if app is None else app.conf.broker_connection_timeout
        super().__init__(*args, **options)
        self._lost_at = float("-inf")
        self._lost_soon = 0
        self._connections: WeakSet[Any] = WeakSet()
        conf = self.app.conf
        if not (
            Hardening.expect(self.app).settings.observe
            or set_by_user(conf, "broker_channel_error_retry")
            or self.conninfo.get_transport_cls().driver_type != "redis"
        ):
            self.connection_errors = (*self.connection_errors, ResponseError)

    @property
    def event_dispatcher(self) -> Any:
        """Celery's, made anew at each connect."""
        return self.__dict__.get("event_dispatcher")

    @event_dispatcher.setter
    def event_dispatcher(self, dispatcher: Any) -> None:
        # Celery tries without end to send a heartbeat, in the loop that consumes: a broker that falls silent holds the
        # loop up there, and a worker that could reconnect does not look. Tried once, it is kept in a buffer.
        if dispatcher is not None and not Hardening.expect(self.app).settings.observe:
            dispatcher.send = _once(dispatcher.send)
            _unconfirmed(dispatcher)
        self.__dict__["event_dispatcher"] = dispatcher

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
        self._connections.add(conn)
        if conn.connect_timeout is None and not Hardening.expect(self.app).settings.observe:
            conn.connect_timeout = self._patience
        if Hardening.expect(self.app).settings.observe or tries_are_counted(self.app.conf):
            return super().ensure_connected(conn)
        super().ensure_connected(_Endless(conn))
        return conn

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """
        Celery's: let go of the connection that is lost. What fails in that does not end the worker.

        kombu 5.7 may close the channel of a lost Redis connection twice, and the second time raises
        ``AttributeError``, which is no connection error; the worker would end instead of returning.

        Raises:
            WorkerShutdown, WorkerTerminate: The worker is told to stop.
        """
        self.tick.attempt()
        self._tell_nobody()
        try:
            super().on_connection_error_after_connected(exc)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is nothing left to close
            logger.warning("a lost connection was not closed in good order: %r", error)
        self._drop_others()
        self.tick.attempt()
        self._pause()

    def _tell_nobody(self) -> None:
        """No more events until there is a connection again; those that wait in a buffer are kept.

        Celery would say "worker-offline" by the connection that is lost: it waits as long as that may take, and in
        a pool of greenlets for as long as the broker is silent, since a heartbeat that tries without end to be sent
        holds the lock. The next connection has a dispatcher of its own.
        """
        dispatcher = self.event_dispatcher
        if dispatcher is not None and not Hardening.expect(self.app).settings.observe:
            dispatcher.enabled = False

    def _drop_others(self) -> None:
        """Let go of the connections beside the lost one, for events and remote control, without a word to RabbitMQ.

        An orderly end waits for its answer, for as long as it is silent: a pool of greenlets waits for its control
        loop, and that for the answer, before it tries to connect again.
        """
        if Hardening.expect(self.app).settings.observe or self.conninfo.get_transport_cls().driver_type != "amqp":
            return
        for conn in list(self._connections):
            try:
                conn.collect()
            except Exception as error:  # noqa: BLE001 - as above
                logger.debug("a connection was not dropped in good order: %r", error)

    def _pause(self) -> None:
        """Wait if the connection was lost soon after the last one: ever longer, up to `LONGEST_WAIT`."""
        now = time.monotonic()
        self._lost_soon = self._lost_soon + 1 if now - self._lost_at < SOON else 0
        end = now + min(self._lost_soon * STEP, LONGEST_WAIT)
        while (left := end - time.monotonic()) > 0:
            maybe_shutdown()
            self.tick.attempt()
            time.sleep(min(left, STEP))
        self._lost_at = time.monotonic()


def tries_are_counted(conf: Any) -> bool:
    """Did the user set a number of tries?"""
    return set_by_user(conf, "broker_connection_max_retries") and conf.broker_connection_max_retries is not None


def _once(send: Callable[..., Any]) -> Callable[..., Any]:
    """``EventDispatcher.send`` without its retries."""

    def send_once(*args: Any, **fields: Any) -> Any:
        return send(*args, **{**fields, "retry": False})

    return send_once


def _unconfirmed(dispatcher: Any) -> None:
    """Events wait for no word of RabbitMQ: ``confirm_publish`` is for tasks, and its wait has no end.

    A broker that falls silent would hold up the loop there, which then looks for no missing heartbeats either.
    """
    producer = getattr(dispatcher, "producer", None)
    if producer is not None and dispatcher.connection.transport.driver_type == "amqp":
        vars(producer.channel).pop("basic_publish", None)  # py-amqp puts it before its own of the class


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
