"""kombu's poller of Redis connections, with fetchers where it had one blocking pop a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.transport.redis import MultiChannelPoller

from celery_hardened.transport.fetcher import Fetcher

if TYPE_CHECKING:
    from celery_hardened.transport.channel import HardenedChannel


class FetchingPoller(MultiChannelPoller):
    """Fanout queues are kombu's business; what a fetcher is told is always read.

    kombu holds back an answer for which there is no credit. A fetch answers with
    messages that are leased already, so they are handed out and counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._listening: set[int] = set()

    @property
    def fds(self) -> dict[int, Any]:
        """What the event loop has to begin to listen to.

        kombu names all at every turn of the loop, which with a connection for each wait costs more than
        anything else it does. A fetcher's is named once.
        """
        fresh = {fd: found for fd, found in self._fd_to_chan.items() if fd not in self._listening}
        self._listening.update(fd for fd, (_, kind) in fresh.items() if isinstance(kind, Fetcher))
        return fresh

    def _register(self, channel: HardenedChannel, client: Any, kind: Any) -> None:
        super()._register(channel, client, kind)
        self._listening.discard(client.connection._sock.fileno())

    def on_poll_start(self) -> None:
        for channel in tuple(self._channels):
            if channel.leases_messages:
                channel.pump(self)
            elif channel.active_queues and channel.qos.can_consume():
                self._register_BRPOP(channel)
            if channel.active_fanout_queues:
                self._register_LISTEN(channel)

    def _register_BRPOP(self, channel: HardenedChannel) -> None:  # noqa: N802 - kombu's name
        """kombu's pop, for a channel that only takes replies: what is never acked needs no lease.

        kombu 5.6 comes here by itself where there is no event loop.
        """
        if channel.leases_messages:
            channel.pump(self)
        else:
            super()._register_BRPOP(channel)

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Without an event loop acks come from other greenlets, and wake nobody here."""
        if any(channel.leases_messages and channel.credit() <= 0 for channel in tuple(self._channels)):
            timeout = 0.05 if timeout is None else min(timeout, 0.05)
        return super().get(callback, timeout)

    def connected(self, channel: HardenedChannel, fetcher: Fetcher) -> bool:
        """Connect *fetcher* if it is not, and listen to it. Raises what the connection raises."""
        if not self._client_registered(channel, fetcher.client, fetcher):
            fetcher.reset()
            self._register(channel, fetcher.client, fetcher)
        return True

    def on_readable(self, fileno: int) -> Any:
        _, kind = self._fd_to_chan.get(fileno, (None, None))
        if isinstance(kind, Fetcher):
            return kind.read()
        return super().on_readable(fileno)

    def handle_event(self, fileno: int, event: int) -> Any:
        _, kind = self._fd_to_chan.get(fileno, (None, None))
        if isinstance(kind, Fetcher):
            return kind.read(), self  # also on ERR: reading raises what is wrong
        return super().handle_event(fileno, event)

    def on_poll_init(self, poller: Any) -> None:
        self.poller = poller

    def maybe_restore_messages(self) -> None:
        """Nothing: the sweep does it."""
