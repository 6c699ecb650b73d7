"""A connection that pushes no task message by itself: its channels hand each one to whoever claims it.

kombu makes the message, finds its queues and declares them, as for any publish. Only the commands that would
put it into Redis are noted instead of sent, so that one script can claim a slot and push its message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from celery import Celery
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_hardened.beat.steps import Outgoing
from celery_hardened.beat.store import NotLeaderError
from celery_hardened.errors import HardenedError, StoreUnavailableError

if TYPE_CHECKING:
    from kombu.transport import redis as kombu_redis

    _Channel = kombu_redis.Channel
else:
    _Channel = object  # a mix-in: what it is composed with is kombu's, or ours above it

logger = logging.getLogger("celery_hardened.beat")


class SlotRefusedError(HardenedError):
    """The slot was not claimed, so its message was not sent. For certain."""


class ClaimFailedError(Exception):
    """A claim ended without an answer that it was refused: its message may have been sent.

    Carries the error through kombu, which would try a publish again whose connection was lost. Made outside of
    any handler: an error in its context would say how certain it is that nothing was sent.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@dataclass(slots=True)
class Capture:
    """One fire on its way through Celery's publish path, and what became of its message."""

    task_id: str
    task: str
    claim: Callable[[Sequence[Outgoing]], None]
    claimed: bool = False
    failed: Exception | None = None
    """What *claim* raised last."""

    pushes: list[Outgoing] | None = None
    """While kombu delivers the message: what it would have sent."""

    expiring: list[tuple[str, int]] = field(default_factory=list)
    """Lists that live so many milliseconds after a publish."""

    def concerns(self, message: dict[str, Any]) -> bool:
        """Is *message* that of the fire, and not an event, or what user code sends besides?

        A task's own ``apply_async`` may give it another id, or send another task in its place.
        """
        headers = message.get("headers") or {}
        ids = (headers.get("id"), message["properties"].get("correlation_id"))
        return self.task_id in ids or headers.get("task") == self.task

    def hand_over(self, pushes: Sequence[Outgoing]) -> None:
        """Have the message claimed; none of *pushes*: its exchange leads nowhere.

        Raises:
            SlotRefusedError: It was refused, now or before. ``failed`` says by what.
            ClaimFailedError: It is not known.
        """
        if self.failed is not None and _is_certain(self.failed):
            raise SlotRefusedError(self.task, "it was refused before")
        try:
            self.claim(pushes)
        except Exception as error:  # noqa: BLE001 - told below, outside of its handler
            self.failed = error
        else:
            self.claimed, self.failed = True, None
            return
        raise SlotRefusedError(self.task, "refused") if _is_certain(self.failed) else ClaimFailedError(self.failed)


def _is_certain(error: Exception) -> bool:
    """Was nothing sent, for certain? Redis may have done what it could not answer to."""
    return isinstance(error, (HardenedError, NotLeaderError)) and not isinstance(error, StoreUnavailableError)


#: The fire that this connection is used for now. None of it, no message.
capturing: ContextVar[Capture | None] = ContextVar("hardened_capturing", default=None)


class CapturingChannel(_Channel):
    """Mix-in for kombu's Redis channels, and ours."""

    #: kombu's batches send what they hold when they end.
    supports_batch_publish = False

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> Any:
        capture = capturing.get()
        if capture is None:
            raise SlotRefusedError("a message outside of any fire")
        if not capture.concerns(message):
            return super().basic_publish(message, exchange, routing_key, **options)  # type: ignore[no-untyped-call]
        if capture.claimed:
            logger.warning("%s[%s] was published again under its id: once is enough", capture.task, capture.task_id)
            return None
        if self.connection is None:
            # A declaration has lost and renewed the connection under the publish, which goes on with the channel
            # of before. kombu does not see that; an error that it knows lets it publish on the new one.
            raise RedisConnectionError("the channel was closed when its connection was lost")
        capture.pushes, capture.expiring = [], []
        try:
            super().basic_publish(message, exchange, routing_key, **options)  # type: ignore[no-untyped-call]
            pushes = tuple(capture.pushes)
        finally:
            capture.pushes = None
        capture.hand_over(pushes)
        self._keep_alive(capture)
        return None

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        with super().conn_or_acquire(client) as real:
            capture = capturing.get()
            yield real if capture is None or capture.pushes is None else _Recorder(real, capture)

    def _keep_alive(self, capture: Capture) -> None:
        """Queues that expire live on from here, as after a push of kombu's. Never raises: the message is sent."""
        if not capture.expiring:
            return
        try:
            with self.conn_or_acquire() as client, client.pipeline() as pipe:
                for name, milliseconds in capture.expiring:
                    pipe.pexpire(name, milliseconds)
                pipe.execute()
        except Exception as problem:  # noqa: BLE001
            logger.warning("the queue of %s expires from the publish before: %r", capture.task, problem)


class _Recorder:
    """A client that notes what would put a message into Redis, and does everything else.

    It is its own pipeline: kombu uses one for a push to a queue that expires.
    """

    def __init__(self, client: Any, capture: Capture) -> None:
        self._client = client
        self._capture = capture

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def lpush(self, name: str, *payloads: Any) -> None:
        for payload in payloads:
            self._note("LPUSH", name, payload)

    def publish(self, channel: str, message: Any) -> None:
        self._note("PUBLISH", channel, message)

    def _note(self, verb: Literal["LPUSH", "PUBLISH"], name: str, payload: Any) -> None:
        prefixed = getattr(self._client, "_prefix_args", list)  # of a client with ``global_keyprefix``
        _, key, payload = prefixed([verb, name, payload])
        pushes = self._capture.pushes
        assert pushes is not None  # noqa: S101
        pushes.append(Outgoing(verb, str(key), payload.encode() if isinstance(payload, str) else bytes(payload)))

    def pexpire(self, name: str, time: int) -> None:
        self._capture.expiring.append((name, time))

    def pipeline(self, *_: Any, **__: Any) -> _Recorder:
        return self

    def execute(self) -> list[Any]:
        return []

    def __enter__(self) -> _Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to give back."""


@lru_cache(maxsize=64)
def compose_capturing(base: Any) -> Any:
    """*base*, a Redis transport of kombu's or ours, with channels that capture."""
    if issubclass(base.Channel, CapturingChannel):
        return base
    over = base.Channel
    channel = type(over.__name__, (CapturingChannel, over), {"__module__": over.__module__})
    return type(base.__name__, (base,), {"__module__": base.__module__, "Channel": channel})


def capturing_connection(app: Celery) -> Any:
    """A connection of *app* to its broker on which every channel captures, also one that is made again after
    the connection was lost. It connects when it is used. Only where ``is_capturable(app)``."""
    connection: Any = app.connection_for_write()
    base: Any = type(connection)

    class CapturingConnection(base):  # type: ignore[misc]
        def get_transport_cls(self) -> Any:
            return compose_capturing(super().get_transport_cls())

    CapturingConnection.__name__ = CapturingConnection.__qualname__ = base.__name__
    connection.__class__ = CapturingConnection  # of the instance: clones and failover keep it
    return connection
