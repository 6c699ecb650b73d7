"""A worker empties the dead letter queues of the queues it consumes into the dead letter store.

What RabbitMQ itself takes out of a queue (rejected, expired, over a limit) waits
in ``<queue>.dlq``. A message is acked only when its letter is written, or when it
is back in its queue; so a crash in between gives the same letter again, under the
same id. While the store is down messages stay unacked, at most ``_PREFETCH`` of each
queue, and are tried again after a growing pause.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from amqp.exceptions import ChannelError
from celery import bootsteps
from celery.worker.consumer.tasks import Tasks
from kombu.common import ignore_errors
from kombu.transport.pyamqp import Channel

from celery_hardened.dead_letter.amqp_policy import dead_letter_queue
from celery_hardened.dead_letter.amqp_queue import look
from celery_hardened.dead_letter.broker_letter import dispose
from celery_hardened.dead_letter.contract import DeadLetterStore
from celery_hardened.dead_letter.keep import keep
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.put_back import PutBack
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.wire import capture

logger = logging.getLogger("celery_hardened.dead_letter")

#: Messages of one dead letter queue that a worker holds unacked.
_PREFETCH = 10

#: Seconds before a failed write is tried again: first, and at most.
_PAUSE, _PAUSE_MAX = 1.0, 60.0

#: Seconds after which held messages are given back and fetched anew. RabbitMQ closes a
#: channel that holds one for 30 minutes, and Celery takes that for a lost connection.
_HOLD_MAX = 600.0

#: Seconds between two looks for queues that the worker was told to consume since.
_LOOK_EVERY = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainInto:
    """What the drain needs of its app. Called when needed, not before."""

    store: Callable[[], DeadLetterStore]

    recorded_deaths: Callable[[DeadLetter], int]
    """Deaths recorded of the work this letter is about. May raise ``StoreUnavailableError``."""

    version: Callable[[], str | None]

    is_kept: Callable[[DeadLetter, bool], object] = lambda *_: None
    """Told of each letter that was written, and whether it is new. Never raises."""


def drain_step(into: DrainInto) -> type[DrainDeadLetterQueues]:
    """The worker step for one app: ``app.steps["consumer"].add(drain_step(...))``."""
    return type("DrainDeadLetterQueues", (DrainDeadLetterQueues,), {"into": into})


class DrainDeadLetterQueues(bootsteps.StartStopStep):  # type: ignore[misc]
    """Consumes ``<queue>.dlq`` of every consumed queue that has one, each on a channel of its own:
    what goes wrong with one closes that channel alone.

    All of it happens in the worker's own loop. Timers only ask the loop to call back,
    because under gevent two greenlets must not read one connection.
    """

    requires = (Tasks,)
    into: DrainInto

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self._channels: dict[str, Any] = {}
        self._looked_at: set[str] = set()
        self._timer: Any = None
        self._held: deque[tuple[str, Any]] = deque()
        self._held_since = 0.0
        self._pause = _PAUSE
        self._store_is_down = False
        self._term = 0
        """Counts the times the channels were opened: what was planned before is void."""

        self._put_back = PutBack(c.app)

    # --- Celery's seams -----------------------------------------------------------------------

    def start(self, c: Any) -> None:
        if not isinstance(c.connection.default_channel, Channel):
            return
        self._look_for_queues(c)
        self._timer = c.timer.call_repeatedly(_LOOK_EVERY, c.call_soon, (self._look_again, c, self._term))

    def stop(self, c: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._let_go(c)
        self._put_back.close()

    shutdown = stop

    # --- which queues -------------------------------------------------------------------------

    def _look_again(self, c: Any, term: int) -> None:
        if term == self._term:
            self._look_for_queues(c)

    def _look_for_queues(self, c: Any) -> None:
        for queue in list(c.app.amqp.queues.consume_from):
            if queue in self._looked_at:
                continue
            try:
                # One that is not there is looked for again: it may be made, or made anew, at any time.
                if look(c.connection.default_channel, dead_letter_queue(queue)) is not None:
                    self._consume(c, queue)
                    self._looked_at.add(queue)
            except ChannelError as refusal:
                self._looked_at.add(queue)  # a refusal stays one until somebody restarts the worker
                logger.error("%s is not drained: %s", dead_letter_queue(queue), refusal)

    def _consume(self, c: Any, queue: str) -> None:
        self._close(c, queue)
        channel = c.connection.channel()
        self._channels[queue] = channel

        def arrived(raw: Any) -> None:
            self._arrived(c, queue, channel.message_to_python(raw))

        def ended(_: str) -> None:
            # The queue was deleted, or its node is gone. Unheard, this would end the
            # worker's whole connection.
            logger.warning("RabbitMQ ended the consumer of %s", dead_letter_queue(queue))
            self._looked_at.discard(queue)

        channel.basic_qos(0, _PREFETCH, False)
        channel.basic_consume(dead_letter_queue(queue), callback=arrived, on_cancel=ended)
        logger.info("draining %s into the dead letters", dead_letter_queue(queue))

    def _let_go(self, c: Any) -> None:
        """Close all channels; what was held is the broker's again."""
        self._term += 1
        self._held.clear()
        self._store_is_down = False
        self._looked_at.clear()
        for queue in list(self._channels):
            self._close(c, queue)

    def _close(self, c: Any, queue: str) -> None:
        channel = self._channels.pop(queue, None)
        if channel is not None and c.connection is not None:
            ignore_errors(c.connection, channel.close)

    # --- what comes out of them -----------------------------------------------------------------

    def _arrived(self, c: Any, queue: str, message: Any) -> None:
        if self._store_is_down or self._settle(c, queue, message) != "done":
            self._hold(c, queue, message)

    def _settle(self, c: Any, queue: str, message: Any) -> Literal["done", "store is down", "failed"]:
        """Deal with one message, and ack it once that is done."""
        try:
            self._deal(c, queue, message)
        except StoreUnavailableError as problem:
            logger.error("messages of %s wait there: %s", dead_letter_queue(queue), problem)
            self._store_is_down = True
            return "store is down"
        except Exception:  # the worker must outlive every message, and the message every mistake of ours
            logger.exception("a message of %s could not be dealt with and stays there", dead_letter_queue(queue))
            return "failed"
        self._store_is_down = False
        message.ack()
        return "done"

    def _deal(self, c: Any, queue: str, message: Any) -> None:
        wire = capture(message, queue=queue)
        disposal = dispose(
            wire,
            queue=queue,
            recorded_deaths=self.into.recorded_deaths,
            now=time.time(),
            worker=str(c.hostname),
            version=self.into.version(),
        )
        letter = disposal.letter
        if disposal.go_back and self._put_back(wire, queue):
            _log(logging.WARNING, letter, "is back in its queue, it has killed no worker:")
            return
        kept, new = keep(self.into.store(), letter)
        self.into.is_kept(letter, new)
        if new:
            _log(logging.ERROR, letter, f"is dead letter {kept}, {letter.reason}:")

    # --- while it cannot be done ------------------------------------------------------------------

    def _hold(self, c: Any, queue: str, message: Any) -> None:
        self._held.append((queue, message))
        if len(self._held) == 1:
            self._held_since = time.monotonic()
            self._pause = _PAUSE
            self._try_later(c)

    def _try_later(self, c: Any) -> None:
        c.timer.call_after(self._pause, c.call_soon, (self._try_held, c, self._term))
        self._pause = min(_PAUSE_MAX, self._pause * 2)

    def _try_held(self, c: Any, term: int) -> None:
        if term != self._term:
            return  # their channels are closed; they come again by new ones
        for _ in range(len(self._held)):
            queue, message = self._held.popleft()
            outcome = self._settle(c, queue, message)
            if outcome != "done":
                self._held.append((queue, message))
            if outcome == "store is down":
                break  # each further try would hold up the worker's loop
        if not self._held:
            return
        if time.monotonic() - self._held_since < _HOLD_MAX:
            self._try_later(c)
        else:
            self._let_go(c)
            self._look_for_queues(c)


def _log(level: int, letter: DeadLetter, what: str) -> None:
    logger.log(
        level,
        "%s[%s] %s %s",
        letter.task or "<no task>",
        letter.task_id or "",
        what,
        letter.error_message,
        extra={
            "task": letter.task,
            "task_id": letter.task_id,
            "queue": letter.queue,
            "attempt": letter.attempt,
            **({} if level == logging.ERROR else {"outcome": "requeue"}),
            "reason": letter.reason,
        },
    )
