"""Delivery of one app: what its channels share in this process."""

from __future__ import annotations

import hashlib
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery_hardened.redis_connection import client_of
from celery_hardened.transport.keeper import Callbacks, Keeper
from celery_hardened.transport.leases import Lease, Leases
from celery_hardened.transport.names import Keys
from celery_hardened.transport.scripts import DeliveryScripts, Layout
from celery_hardened.transport.watch import Watch

if TYPE_CHECKING:
    from celery_hardened.transport.channel import HardenedChannel


class FetchScript:
    """The fetch script on a consumer's own connection, where no client can see to it."""

    def __init__(self) -> None:
        self._source = resources.files(str(__package__)).joinpath("fetch.lua").read_text("utf-8")
        self.sha = hashlib.sha1(self._source.encode()).hexdigest()  # noqa: S324 - EVALSHA's own name for it

    def load(self, connection: Any) -> None:
        connection.send_command("SCRIPT", "LOAD", self._source)
        connection.read_response()


class Delivery:
    """See the module. Made when the app's settings are known; connects to nothing by itself.

    Args:
        prefix: ``hardened_key_prefix``; the channel knows ``global_keyprefix``.

        lease: ``hardened_lease``.

        max_eta: ``hardened_max_eta``.
    """

    def __init__(self, *, prefix: str, lease: float, max_eta: float) -> None:
        self._prefix = prefix
        self._lease = lease
        self.max_eta = max_eta
        self.on = Callbacks()
        self.fetch_script = FetchScript()
        self.leases: Leases | None = None
        """What this process holds; ``None`` before its first channel consumes."""
        self._keeper: Keeper | None = None
        self._channels: WeakSet[HardenedChannel] = WeakSet()
        self._address: Any = None
        self._loop = 0

    def keys_of(self, channel: HardenedChannel) -> Keys:
        prefix = channel.global_keyprefix
        return Keys(prefix + channel.unacked_key, prefix + channel.unacked_index_key, f"{prefix}{self._prefix}")

    def leases_of(self, channel: HardenedChannel) -> Leases:
        """The leases of this process, reached where *channel* is connected to."""
        connection = channel.connection.client
        address = (connection.hostname, connection.port, connection.virtual_host)
        if self.leases is not None and address == self._address:
            return self.leases
        layout = Layout(
            prefix=channel.global_keyprefix, separator=channel.sep, steps=tuple(sorted(channel.priority_steps))
        )
        scripts = DeliveryScripts(client_of(connection, tries=2), channel.keys, layout)
        self._address = address
        if self.leases is not None:
            self.leases.scripts = scripts
            return self.leases
        self.leases = Leases(scripts, lease=self._lease, lost=self._lost, wanted=self._keep)
        self._keeper = keeper = Keeper(
            self.leases, visibility=channel.visibility_timeout, consuming=lambda: bool(self.consumers()), on=self.on
        )
        watch = Watch(self.consumers, self.leases, silence=lambda: keeper.silence, busy=lambda: self.on.working())
        self.on.watch = watch.look
        self.on.restore = self._restore
        return self.leases

    def _lost(self, lease: Lease) -> None:
        self.on.lost(lease)

    def _keep(self) -> None:
        if self._keeper is not None:
            self._keeper.start()

    def close(self) -> None:
        """The process ends: what it holds goes back. A channel that consumes later starts anew."""
        keeper, leases = self._keeper, self.leases
        self._keeper = self.leases = None
        if keeper is not None and leases is not None:
            keeper.stop()
            leases.close()

    # --- channels that consume -----------------------------------------------------------------------

    def consumes(self, channel: HardenedChannel) -> None:
        self._channels.add(channel)

    def consumers(self) -> list[HardenedChannel]:
        return [channel for channel in list(self._channels) if not channel.closed]

    def _restore(self, tag: str) -> None:
        """Put back a delivery of kombu's own, by kombu's own code: only it knows the bindings of exchanges."""
        for channel in self.consumers()[:1]:
            channel.restore_abandoned(tag)

    # --- the loop that consumes --------------------------------------------------------------------

    def loop_turned(self) -> None:
        self._loop = threading.get_ident()
        if self._keeper is not None:
            self._keeper.loop_turned()

    def in_loop(self) -> bool:
        """Is this the thread, or greenlet, whose loop takes the messages?"""
        return threading.get_ident() == self._loop
