"""Delivery of one app: what its channels share in this process."""

from __future__ import annotations

import hashlib
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from kombu.utils.url import parse_url

from celery_hardened.redis_connection import client_of
from celery_hardened.transport.keeper import Callbacks, Keeper
from celery_hardened.transport.leases import Leases
from celery_hardened.transport.names import Keys
from celery_hardened.transport.scripts import DeliveryScripts, Layout
from celery_hardened.transport.watch import Watch

if TYPE_CHECKING:
    from celery_hardened.transport.channel import HardenedChannel


#: Host, port, virtual host.
Address: TypeAlias = "tuple[Any, Any, Any]"


#: Name of the script that takes messages.
FETCH = "fetch"


class FetchScript:
    """The fetch script on a consumer's own connection, where no client can see to it."""

    def __init__(self) -> None:
        self._source = resources.files(str(__package__)).joinpath(f"{FETCH}.lua").read_text("utf-8")
        self.sha = hashlib.sha1(self._source.encode()).hexdigest()  # noqa: S324 - EVALSHA's own name for it

    def load(self, connection: Any) -> None:
        connection.send_command("SCRIPT", "LOAD", self._source)
        connection.read_response()


class Broker:
    """One Redis that this process takes messages from: its leases, the thread that keeps them, its channels."""

    def __init__(self, scripts: DeliveryScripts, *, lease: float, visibility: float, on: Callbacks) -> None:
        self.channels: WeakSet[HardenedChannel] = WeakSet()
        self.leases = Leases(
            scripts, lease=lease, lost=lambda lease: on.lost(lease), wanted=lambda: self.keeper.start()
        )
        self.keeper: Keeper = Keeper(
            self.leases, visibility=visibility, consuming=lambda: bool(self.consumers()), on=on
        )
        watch = Watch(self.consumers, self.leases, silence=lambda: self.keeper.silence, busy=lambda: on.working())
        self.keeper.watch = watch.look
        self.keeper.restore = self._restore

    def consumers(self) -> list[HardenedChannel]:
        return [channel for channel in list(self.channels) if not channel.closed]

    def _restore(self, tag: str) -> None:
        """Put back a delivery of kombu's own: only a channel knows the bindings of exchanges."""
        for channel in self.consumers()[:1]:
            channel.restore_abandoned(tag)

    def close(self) -> None:
        self.keeper.stop()
        self.leases.close()


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
        self._brokers: dict[Address, Broker] = {}
        self._loop = 0

    # --- brokers -----------------------------------------------------------------------------------

    def keys_of(self, channel: HardenedChannel) -> Keys:
        prefix = channel.global_keyprefix
        return Keys(prefix + channel.unacked_key, prefix + channel.unacked_index_key, f"{prefix}{self._prefix}")

    def broker_of(self, channel: HardenedChannel) -> Broker:
        """Where *channel* is connected to. A connection that failed over to the next of its addresses takes
        what it holds along."""
        connection = channel.connection.client
        address = (connection.hostname, connection.port, connection.virtual_host)
        found = self._brokers.get(address)
        if found is not None:
            return found
        layout = Layout(
            prefix=channel.global_keyprefix, separator=channel.sep, steps=tuple(sorted(channel.priority_steps))
        )
        scripts = DeliveryScripts(client_of(connection, tries=2), channel.keys, layout)
        before = next((one for one in _others(connection) if one in self._brokers), None)
        if before is not None:
            found = self._brokers.pop(before)
            found.leases.scripts = scripts
        else:
            found = Broker(scripts, lease=self._lease, visibility=channel.visibility_timeout, on=self.on)
        self._brokers[address] = found
        return found

    def consumers(self) -> list[HardenedChannel]:
        """The channels that take messages."""
        return [channel for broker in list(self._brokers.values()) for channel in broker.consumers()]

    def close(self) -> None:
        """The process ends: what it holds goes back. A channel that consumes later starts anew."""
        brokers = list(self._brokers.values())
        self._brokers = {}
        for broker in brokers:
            broker.close()

    # --- what is held, wherever it is from -----------------------------------------------------------

    def start(self, tag: str) -> bool:
        """``Leases.start`` where *tag* is held; ``False`` if it is nowhere."""
        return any(broker.leases.start(tag) for broker in list(self._brokers.values()) if broker.leases.holds(tag))

    def holds(self, tag: str) -> bool:
        return any(broker.leases.holds(tag) for broker in list(self._brokers.values()))

    def started(self, tag: str) -> bool:
        """Is it held, and was it handed to the pool?"""
        return any(broker.leases.started(tag) for broker in list(self._brokers.values()))

    def give_back_unstarted(self) -> None:
        for broker in list(self._brokers.values()):
            broker.leases.give_back_of(None)

    # --- the loop that consumes --------------------------------------------------------------------

    def loop_turned(self) -> None:
        self._loop = threading.get_ident()
        for broker in self._brokers.values():
            broker.keeper.loop_turned()

    def in_loop(self) -> bool:
        """Is this the thread, or greenlet, whose loop takes the messages?"""
        return threading.get_ident() == self._loop


def _others(connection: Any) -> list[Address]:
    """The other addresses of a connection's failover list."""
    found: list[Address] = []
    for url in connection.alt if len(connection.alt) > 1 else ():
        try:
            parts = parse_url(url)
        except (ValueError, TypeError, AttributeError):
            continue
        found.append((parts.get("hostname"), parts.get("port"), parts.get("virtual_host")))
    return found
