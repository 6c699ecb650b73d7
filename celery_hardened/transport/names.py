"""Names in Redis: of keys, of deliveries, of lists that belong to one consumer."""

from __future__ import annotations

from dataclasses import dataclass

#: First part of the tag of a leased delivery. ``1`` is the version of the protocol.
LEASED = "h1:"

#: First part of the tag of a message that waits for its time.
DELAYED = "h1d:"

#: Top-level key of a message on the wire that says what became of earlier deliveries.
#: kombu's own transport carries it along unread.
MARK = "hardened-delivery"


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key that delivery uses beside the queues, whole, prefix included."""

    unacked: str
    """kombu's hash: tag → ``[message, exchange, routing key]``."""

    index: str
    """kombu's sorted set: tag → expiry of the lease, or due time (ours); time taken (kombu's own)."""

    prefix: str
    """Ours: ``{global_keyprefix}{hardened_key_prefix}``."""

    @property
    def fence(self) -> str:
        """Counter: every delivery gets a number of its own, larger than all before it."""
        return f"{self.prefix}:delivery:fence"

    @property
    def fetching(self) -> str:
        """Sorted set of consumers' own lists: ``[own list, awaited list]`` as JSON → until when it is theirs."""
        return f"{self.prefix}:delivery:fetching"

    @property
    def malformed(self) -> str:
        """Hash of queue items that are no message: tag → queue as JSON, a line feed, the raw item."""
        return f"{self.prefix}:delivery:malformed"

    @property
    def sweep(self) -> str:
        """Hash: when the last sweep was (``at``), until when leases have ``grace``, how many sweeps in a row
        came after a pause (``pauses``), where the next one goes on (``offset``)."""
        return f"{self.prefix}:delivery:sweep"

    def own_list(self, consumer: str, awaited: str) -> str:
        """List that messages of the list *awaited* pass through on their way to a lease of *consumer*."""
        return f"{self.prefix}:delivery:fetching:{consumer}:{awaited}"


def tag(consumer: str, number: int, *, kind: str = LEASED) -> str:
    """Tag of *consumer*'s delivery *number*. Tags of one consumer sort in the order they were taken."""
    return f"{kind}{consumer}:{number:012d}"


def is_ours(delivery_tag: object) -> bool:
    """Was this delivery leased by our fetch, and not taken by kombu's own code or by AMQP?"""
    return isinstance(delivery_tag, str) and delivery_tag.startswith(LEASED)
