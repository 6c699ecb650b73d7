"""What a worker says of itself every few seconds, and what was lost. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

#: Of the text. It goes up only when an older release would misread a newer text, never for a field more.
VERSION: Final = 1

#: Queues of one worker that are told at most.
MOST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One worker. Durations are seconds, counted back from when it was said."""

    name: str
    """Its node name."""

    pid: int = 0
    pool: str = ""
    concurrency: int = 0
    began: float = 0.0
    """How long ago it was ready first."""

    queues: tuple[str, ...] = ()
    """It takes from these."""

    missing: tuple[str, ...] = ()
    """It should take from these and does not."""

    cancelled: tuple[str, ...] = ()
    """It was told at run time not to take from these any more."""

    deaf: float = 0.0
    """For so long it takes from none, or not from all, though it should."""

    turned: float = 0.0
    """Since its main loop last turned, unless a task within its time limit holds it up."""

    tried: float | None = None
    """Since its last try to connect, while it has no connection."""

    stopping: bool = False
    """It was told to end."""

    counts: bool = False
    """Is ``ended`` known?"""

    held: Mapping[str, int] = field(default_factory=dict)
    """By queue: messages that it has taken and not ended, without those that it keeps until they are due."""

    ended: Mapping[str, float] = field(default_factory=dict)
    """By queue: since work last ended there, if any has since it began."""

    def text(self) -> str:
        """Compact JSON."""
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | bytes) -> WorkerRecord | None:
        """The record of a ``text()``, of this release or of one that has added fields; ``None``: it cannot be read."""
        try:
            kept = json.loads(text)
            if kept.pop("v") != VERSION:
                return None
            known = {one.name for one in fields(cls)}
            found = {name: value for name, value in kept.items() if name in known}
            return cls(**{**found, **_typed(found)})
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def _typed(found: Mapping[str, Any]) -> dict[str, Any]:
    typed: dict[str, Any] = {"name": str(found["name"])}
    for name in ("queues", "missing", "cancelled"):
        typed[name] = tuple(str(one) for one in found.get(name, ()))
    for name in ("began", "deaf", "turned"):
        typed[name] = float(found.get(name, 0.0))
    typed["held"] = {str(queue): int(number) for queue, number in found.get("held", {}).items()}
    typed["ended"] = {str(queue): float(ago) for queue, ago in found.get("ended", {}).items()}
    return typed


@dataclass(frozen=True, slots=True)
class Present:
    """A worker, as it was last heard of."""

    record: WorkerRecord
    silent: float
    """Seconds since then, by the server's clock."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A lease that ran out while its task ran."""

    queue: str
    worker: str
    task: str
    ago: float


@dataclass(frozen=True, slots=True)
class Roll:
    """All that is known of workers."""

    present: tuple[Present, ...] = ()
    """Those that have not said that they end, the most talkative first."""

    lost: tuple[Lost, ...] = ()
    """The latest first."""
