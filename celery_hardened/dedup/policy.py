"""What ``@deduplicate`` was told, how long a key is held, and which publishes are never refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from celery_hardened.key import BusinessKey

OnDuplicate: TypeAlias = Literal["return", "raise", "drop"]
OnStoreError: TypeAlias = Literal["raise", "send"]

#: Until when a key is held, as the message's header says it.
Until: TypeAlias = Literal["start", "finish", "window"]

#: Options of a publish that only Celery's workflows and callbacks give, or somebody who waits for
#: the end of this very task. ``reply_to`` is in every signature whose result was handed out before.
_AWAITED = ("group_id", "chord", "link", "link_error", "root_id", "parent_id", "reply_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicate:
    """The options of one task's ``@deduplicate``."""

    key: BusinessKey
    until: Until
    window: float | None
    """Seconds; of ``until="window"`` only."""

    on_duplicate: OnDuplicate
    on_store_error: OnStoreError


def held_for(
    *,
    window: float | None,
    retention: float,
    lease: float,
    time_limit: float | None,
    delay: float,
    expires: float | None,
) -> float:
    """Seconds from the publish on that a key is held, if nothing is heard of its task.

    Args:
        window: Seconds, of ``until="window"`` only.
        retention: How long a message may wait in its queue.
        lease: How much longer than its owner a key may live.
        time_limit: How long the body may run; a task without one is held to *retention*.
        delay: Seconds until the message is due.
        expires: Seconds until nobody may start it any more.
    """
    alive = max(0.0, delay) + retention + (time_limit or 0.0) + lease if window is None else window
    return alive if expires is None else min(alive, unseen(expires, lease=lease))


def unseen(expires: float, *, lease: float) -> float:
    """Seconds that a message may be on its way which expires in *expires* seconds.

    A broker may drop it then, and tell nobody. Whoever does start it says so, and gets the
    longer time; see ``pipeline.held_windows.started``.
    """
    return max(0.0, expires) + lease


def is_awaited(options: dict[str, Any]) -> bool:
    """Does somebody wait for the end of the very task that is published with *options*?

    A member of a group or chord, a step of a chain, a callback: to refuse one would leave a
    workflow open for ever, or half sent.
    """
    return options.get("chain") is not None or any(options.get(name) for name in _AWAITED)
