"""What becomes of publishes, counted where it is known. Nothing here raises: no publish fails because of it.

::

    published     by the sender (publish.py), which knows the queue; of a beat's fire by the beat, once it is claimed
    deduplicated  where the key was asked for (send.py)
    deferred      by the publish of the caller (send.py); after the commit it counts again, as what it is then
    unsent        where it is given up (publisher.py)
    the others    by what came out of the publish of the caller (send.py)

So each publish is counted once, and one that waited for a commit twice. What goes back as it was (a redrive, a
message that comes again later) is no publish: it is counted by the worker whose delivery that ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Final, TypeAlias

from celery.exceptions import QueueNotFound
from kombu.exceptions import SerializationError

from celery_hardened.errors import ConfigurationError, DuplicateTaskError, PayloadTooLargeError, UnusableKeyError
from celery_hardened.hardening import Hardening
from celery_hardened.metrics.catalogue import PUBLISH_SECONDS, PUBLISHED
from celery_hardened.metrics.publish_result import PublishResult

logger = logging.getLogger("celery_hardened.metrics")

#: When the publish that runs here began (``perf_counter``). Not of a beat's.
began: ContextVar[float | None] = ContextVar("hardened_publish_began", default=None)

#: The call's own fault, not that of what should take it.
_REFUSED: Final = (UnusableKeyError, ConfigurationError, SerializationError, QueueNotFound, TypeError, ValueError)

#: Celery's exchange for messages that quorum queues get later, and how many parts of a routing key are the delay.
_DELAYED, _BITS = "celery_delayed", 28

#: Tasks and routes whose queue is remembered.
_REMEMBERED: Final = 1000


#: Args, kwargs and options of a call.
AsCalled: TypeAlias = "tuple[Any, Any, Mapping[str, Any]]"


class Publishes:
    """Counts the publishes of one app in this process."""

    def __init__(self, hardening: Hardening) -> None:
        self._app: Any = hardening.app
        self._metrics = hardening.metrics
        self._routed: dict[str, str] = {}
        self._bound: dict[tuple[str, str], str] = {}
        self._told = False

    def sent(self, name: str, options: Mapping[str, Any], since: float) -> None:
        """The broker has a message of the task *name*; *options*: as they were routed."""
        try:
            self._metrics.inc(PUBLISHED, (name, self._queue_of(options), "published"))
            self._metrics.observe(PUBLISH_SECONDS, ("published",), perf_counter() - since)
        except Exception as problem:  # noqa: BLE001 - it is sent
            self._tell(problem)

    def ended(self, name: str, result: PublishResult, call: AsCalled, since: float | None = None) -> None:
        """A publish of the task *name* has ended, or waits, and was not routed by Celery.

        Args:
            since: When it began; ``None``: how long it took says nothing.
        """
        try:
            self._metrics.inc(PUBLISHED, (name, self._queue_meant(name, *call), result))
            if since is not None:
                self._metrics.observe(PUBLISH_SECONDS, (result,), perf_counter() - since)
        except Exception as problem:  # noqa: BLE001 - whoever called has the error, or the result
            self._tell(problem)

    def _tell(self, problem: Exception) -> None:
        if not self._told:
            self._told = True
            logger.error("publishes are not counted as they should: %r", problem)

    # --- the queue --------------------------------------------------------------------------------------------

    def _queue_of(self, options: Mapping[str, Any]) -> str:
        """Where a message goes that was routed with *options*. The routing key, if no queue of the app is known."""
        queue, exchange, key = options.get("queue"), options.get("exchange"), options.get("routing_key")
        if exchange and key:  # only then Celery does not send it to the queue itself
            return self._queue_bound(str(getattr(exchange, "name", exchange)), str(key))
        if queue is None:
            queue = self._app.amqp.default_queue
        return str(getattr(queue, "name", queue))

    def _queue_bound(self, exchange: str, key: str) -> str:
        if exchange.startswith(_DELAYED):
            exchange, key = "", key.split(".", _BITS)[-1]
        known = self._bound.get((exchange, key))
        if known is None:
            known = next(
                (
                    str(queue.name)
                    for queue in [*self._app.amqp.queues.values()]
                    if queue.routing_key == key and exchange in ("", queue.exchange.name)
                ),
                key,
            )
            if len(self._bound) < _REMEMBERED:
                self._bound[exchange, key] = known
        return known

    def _queue_meant(self, name: str, args: Any, kwargs: Any, options: Mapping[str, Any]) -> str:
        """Where a message would have gone. Of a route that depends on arguments: where its first one would have."""
        if options.get("queue") or options.get("exchange"):
            return self._queue_of(options)
        known = self._routed.get(name)
        if known is None:
            task = self._app._tasks.get(name)
            given = {**(task._get_exec_options() if task else {}), **options}
            place = {key: given[key] for key in ("queue", "exchange", "routing_key") if given.get(key)}
            known = self._queue_of(self._app.amqp.router.route(place, name, args or (), kwargs or {}, task))
            if len(self._routed) < _REMEMBERED:
                self._routed[name] = known
        return known


def publishes_of(hardening: Hardening) -> Publishes | None:
    """What counts the publishes of this app; ``None``: nothing does."""
    known = hardening.__dict__.get("publishes", _UNKNOWN)
    if known is _UNKNOWN:
        known = hardening.__dict__["publishes"] = Publishes(hardening) if hardening.settings.metrics else None
    return known  # type: ignore[no-any-return]


_UNKNOWN: Any = object()


def ended(hardening: Hardening, name: str, result: PublishResult, call: AsCalled, since: float | None = None) -> None:
    """See ``Publishes.ended``."""
    try:
        publishes = publishes_of(hardening)
    except ConfigurationError:  # of the settings themselves, which is what the caller gets
        return
    if publishes is not None:
        publishes.ended(name, result, call, since)


def raised(hardening: Hardening, name: str, call: AsCalled, problem: BaseException, since: float) -> None:
    """The caller gets *problem* from a publish that began at *since*."""
    if isinstance(problem, DuplicateTaskError):
        return  # it is counted already, where its key was asked for
    result: PublishResult = "failed"
    if isinstance(problem, PayloadTooLargeError):
        result = "too_large"
    elif isinstance(problem, _REFUSED):
        result = "refused"
    ended(hardening, name, result, call, since)
