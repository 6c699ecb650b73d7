"""One connection that takes messages: fetch, and when there are none, wait for one, and fetch.

::

    idle ──fetch script──▶ fetching ──messages──▶ idle
                              │ none
                              ▼
    idle ◀──nothing came── waiting ──one came: it lies in the own list──▶ fetching

A wait is ``BLMOVE queue → own list``: the one blocking pop that also puts the message
somewhere, and wakes one consumer of many. Its answer is only a signal; the fetch script
takes the message out of the own list and leases it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from typing import TYPE_CHECKING, Any, Literal

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.transport.names import tag
from celery_hardened.transport.scripts import CHUNK

if TYPE_CHECKING:
    from celery_hardened.transport.channel import HardenedChannel

#: Seconds that a wait lasts. The main fetcher's shows that the connection lives.
WAIT = 1.0
WAIT_ASIDE = 5.0

#: Seconds that the main fetcher's lasts if there are lists that nobody waits on. An idle server looks
#: for the end of waits ten times a second, so this comes to about a tenth.
POLL = 0.05

#: Seconds an answer may be late before the connection counts as dead.
OVERDUE = 3.0


@contextmanager
def as_lost_connection() -> Iterator[None]:
    """In the loop that consumes, a step of ours that Redis did not answer is a connection that is lost:
    Celery then connects again, as it does for its own."""
    try:
        yield
    except StoreUnavailableError as problem:
        raise RedisConnectionError(str(problem)) from problem


class Fetcher:
    """See the module. Used by its channel's consuming thread only.

    Args:
        queue: Queue and priority step whose list it waits on.

        main: The one that also fetches unasked, from all queues; the others begin with a wait.
    """

    def __init__(self, channel: HardenedChannel, client: Any, queue: str, step: int = 0, *, main: bool = False) -> None:
        self.channel = channel
        self.client = client
        self.queue = queue
        self.step = step
        self.main = main
        self.awaits = channel.list_name(queue, step)
        self.state: Literal["idle", "fetching", "waiting"] = "idle"
        self._queues: list[str] = []
        self._first = 0
        self.asked = 0
        """Messages that a fetch which is not answered yet may bring."""
        self._own = False
        self._acks: list[str] = []
        self.rests_until = 0.0
        """Not to be started before that (``time.monotonic()``)."""
        self.due = 0.0
        """Until when (``time.monotonic()``) the answer has to come, unless it is idle."""

    # --- sending ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Fetch; one that is not the main fetcher waits."""
        if self.main:
            self._fetch()
        else:
            self._wait()

    def _fetch(self, *, own: bool = False) -> None:
        channel = self.channel
        self._queues = channel.queues_in_turn()
        limit = channel.credit()
        if own and (limit <= 0 or self.queue not in self._queues):
            # Another fetcher has used the credit up, or the queue was cancelled: others may have it.
            channel.leases.leave([channel.own_member(self.awaits)])
            return
        if not self._queues or limit <= 0:
            return
        self._own, self.asked = own, limit
        self._first = channel.reserve_numbers(limit)
        self._acks = channel.leases.riding(CHUNK)
        lists, names = channel.lists(tuple(self._queues))
        keys = channel.keys
        self._send(
            "EVALSHA",
            channel.fetch_script.sha,
            5 + len(lists),
            keys.unacked,
            keys.index,
            keys.fence,
            keys.malformed,
            channel.own_list(self.awaits),
            *lists,
            channel.tag_prefix,
            self._first,
            limit,
            channel.leases.lease,
            int(channel.fair),
            self._queues.index(self.queue) + 1 if own else 0,
            len(self._queues),
            *names,
            *self._acks,
        )
        self.state = "fetching"
        self.due = time.monotonic() + OVERDUE

    def _wait(self) -> None:
        channel = self.channel
        with as_lost_connection():
            channel.leases.enter(channel.own_member(self.awaits))
        seconds = WAIT_ASIDE if not self.main else POLL if channel.polls else WAIT
        self._send("BLMOVE", channel.whole(self.awaits), channel.own_list(self.awaits), "RIGHT", "LEFT", seconds)
        self.state = "waiting"
        self.due = time.monotonic() + seconds + OVERDUE

    def _send(self, *command: Any) -> None:
        try:
            self.client.connection.send_command(*command)
        except self.channel.connection_errors:
            self._broken()
            raise

    # --- receiving -------------------------------------------------------------------------------

    def read(self) -> bool:
        """Take the answer that has come; hand out the messages in it.

        Raises:
            queue.Empty: It brought none.
        """
        state, self.state = self.state, "idle"
        self.channel.answered()
        if state == "idle":
            # Nothing was asked: the server has closed the connection.
            self.client.connection.disconnect()
            raise RedisConnectionError("Redis closed an idle connection of this consumer")
        if state == "waiting":
            if self._answer("BLMOVE") is not None:
                self._fetch(own=True)
            elif not self.main and self.channel.credit() > 0 and time.monotonic() >= self.rests_until:
                self._wait()
            raise Empty
        answer = self._fetched()
        if answer is None:  # the script is known now
            self._fetch(own=self._own)
            raise Empty
        self._acks, self.asked = [], 0
        bad, fence, *items = answer
        if bad:
            self.channel.leases.malformed = True
        if not items:
            if not bad and self.channel.credit() > 0 and self.queue in self._queues:
                self._wait()
            raise Empty
        received = [(self._queues[items[n] - 1], items[n + 1]) for n in range(0, len(items), 2)]
        self.channel.received(received, first=self._first, fence=fence)
        return True

    def _fetched(self) -> Any:
        try:
            return self._answer("EVALSHA")
        except NoScriptError:
            self.channel.leases.unsent(self._acks)
            self._acks, self.asked = [], 0
            self.channel.fetch_script.load(self.client.connection)
            return None

    def _answer(self, command: str) -> Any:
        try:
            return self.client.parse_response(self.client.connection, command)
        except NoScriptError:
            raise
        except OutOfMemoryError as refusal:
            if command != "BLMOVE":
                raise self._refused(refusal) from refusal
            # The server's memory is full, and a wait counts as a write that needs some. Fetching goes on.
            self.rests_until = time.monotonic() + WAIT
            return None
        except ResponseError as refusal:
            # READONLY after a fail-over, NOPERM, OOM: whatever it is, a new connection may know better,
            # and trying again and again with a log line each is all a worker can do.
            raise self._refused(refusal) from refusal
        except self.channel.connection_errors:
            self.client.connection.disconnect()
            self._broken()
            raise

    def _refused(self, refusal: ResponseError) -> RedisConnectionError:
        self.client.connection.disconnect()
        self._broken()
        return RedisConnectionError(f"Redis refused to deliver: {refusal}")

    def overdue(self) -> None:
        """No answer has come in time: a half-open socket never becomes readable.

        Raises:
            redis.ConnectionError: It is closed. Not if the answer is there after all.
        """
        connection = self.client.connection
        if connection is not None and connection._sock is not None and _readable(connection._sock):
            return  # it was this process that stood still
        late = time.monotonic() - self.due + OVERDUE
        if connection is not None:
            connection.disconnect()
        self._broken()
        raise RedisConnectionError(f"no answer from Redis for {late:.0f} s")

    def _broken(self) -> None:
        """The connection is gone, and with it perhaps an answer."""
        leases = self.channel.leases
        leases.unsent(self._acks)
        self._acks = []
        if self.asked:
            consumer = self.channel.consumer
            leases.never_arrived([tag(consumer, self._first + n) for n in range(self.asked)])
            self.asked = 0
        self.state = "idle"

    def stop(self) -> list[tuple[str, bytes]]:
        """Its channel closes. A fetch that is under way is waited for: what it leased has to go back.

        Returns:
            The messages it brought: queue and raw item, numbered from ``first``.
        """
        brought: list[tuple[str, bytes]] = []
        connection = self.client.connection
        if self.state == "fetching" and connection is not None:
            try:
                if connection._sock is not None:
                    connection._sock.settimeout(OVERDUE)
                answer = self._fetched() or [0, 0]
            except self.channel.connection_errors:
                answer = [0, 0]  # noted as never arrived
            self._acks, self.asked = [], 0
            items = answer[2:]
            brought = [(self._queues[items[n] - 1], items[n + 1]) for n in range(0, len(items), 2)]
        self.state = "idle"
        if connection is not None:
            connection.disconnect()
            self.client.connection = None
            self.client.connection_pool.release(connection)
        return brought

    @property
    def first(self) -> int:
        """Number of the first delivery of the last fetch."""
        return self._first

    def reset(self) -> None:
        """Its connection was replaced."""
        if self.state != "idle":
            self._broken()


def _readable(sock: Any) -> bool:
    poller = select.poll() if hasattr(select, "poll") else None
    if poller is None:
        return bool(select.select([sock], [], [], 0)[0])
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))
