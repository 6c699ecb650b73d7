"""What a soak found, for people and for programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from redis import Redis

from tests.chaos.soak_ledger import Notes, Repeat, percentile

_TASK = re.compile(rb"soak-(\d+)")
_SHOWN = 20

NOWHERE = "no place"


@dataclass(slots=True)
class Report:
    """The figures. A soak is ``clean`` if nothing was lost and every repeat has its fault."""

    delivery: str
    server: str
    seed: int
    lease: float
    workers: str
    tasks: int
    kills: dict[str, int]
    lost: list[str] = field(default_factory=list)
    """Accepted, and neither ended nor a dead letter: which, what it wrote, and where it is now."""

    left_over: list[str] = field(default_factory=list)
    """Messages that stayed in the broker though their tasks had ended."""

    dead_letters: dict[str, int] = field(default_factory=dict)
    """By reason. None is expected."""

    started: int = 0
    repeated: int = 0
    explained: dict[str, int] = field(default_factory=dict)
    """Repeats by what explains them."""

    overlapping: dict[str, int] = field(default_factory=dict)
    """Those of them that began while the earlier body ran on."""

    unexplained: list[str] = field(default_factory=list)
    unsure: int = 0
    """Publishes that may have been sent twice."""

    recovery: dict[str, dict[str, float | int | None]] = field(default_factory=dict)
    """Seconds from the kill of a running task to its next start, by kind of kill."""

    exits: list[str] = field(default_factory=list)
    """Workers that ended though nobody killed them."""

    feeding: float = 0.0
    """Seconds from the first task to the last one's end."""

    wall: float = 0.0
    """Seconds in all."""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.left_over or self.unexplained)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "clean": self.clean, "gone": self.gone, "tasks_per_second": self.rate}

    @property
    def gone(self) -> int:
        """Lost tasks without a message anywhere; those of the others lie there and nobody takes them."""
        return sum(one.endswith(NOWHERE) for one in self.lost)

    @property
    def rate(self) -> float:
        return round(self.tasks / self.feeding, 1) if self.feeding else 0.0

    def take(self, repeats: list[Repeat], recovered: Mapping[str, list[float]], *, began: float) -> None:
        """Count the repeats and the recoveries."""
        self.repeated = len(repeats)
        self.explained = dict(Counter(repeat.why for repeat in repeats if repeat.why))
        self.overlapping = dict(Counter(repeat.why or "unexplained" for repeat in repeats if repeat.overlaps))
        self.unexplained = [_told(repeat, began) for repeat in repeats if not repeat.why]
        self.recovery = {
            kind: {
                "count": len(times),
                **{name: _short(percentile(times, part)) for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
            }
            for kind, times in recovered.items()
        }

    def lines(self) -> list[str]:
        """The report in words."""
        kills = ", ".join(f"{number} {kind}" for kind, number in self.kills.items())
        found = [
            f"{self.delivery} delivery on {self.server}, {self.workers}, lease {self.lease:g} s, seed {self.seed}",
            f"tasks        {self.tasks} ({self.started} starts), {self.rate} a second, {self.wall:.0f} s in all",
            f"kills        {sum(self.kills.values())}: {kills}",
            f"lost         {len(self.lost)}" + f", {self.gone} of them in no place" * bool(self.lost),
            *_some(self.lost),
            f"repeated     {self.repeated}, explained {sum(self.explained.values())}: {_counts(self.explained)}; "
            f"while the earlier body ran on: {_counts(self.overlapping)}",
            f"unexplained  {len(self.unexplained)}",
            *_some(self.unexplained),
            f"left over    {len(self.left_over)} messages of ended tasks",
            *_some(self.left_over),
            f"dead letters {_counts(self.dead_letters)}",
            f"unsure       {self.unsure} publishes that a fault of the server cut",
        ]
        for kind, times in self.recovery.items():
            found.append(
                f"recovery     {kind}: {times['count']} running tasks killed, next start after "
                f"p50 {times['p50']} s, p99 {times['p99']} s, at most {times['max']} s"
            )
        found += [f"exits        {len(self.exits)} workers ended by themselves", *_some(self.exits)]
        return [*found, "CLEAN" if self.clean else "NOT CLEAN"]


def whereabouts(client: Redis) -> dict[int, list[str]]:
    """Where in the broker messages of the soak lie, by task number: every list, hash and set but our records."""
    found: dict[int, list[str]] = {}
    now = client.time()[0]
    for key in client.scan_iter(count=1000):
        if b":death:" in key or b":letter" in key:
            continue
        kind, name = client.type(key), key.decode(errors="replace")
        places: list[tuple[str, bytes]] = []
        if kind == b"list":
            places = [(name, text) for text in client.lrange(key, 0, -1)]
        elif kind == b"hash":
            for tag, text in client.hgetall(key).items():
                score = client.zscore(f"{name}_index", tag)
                left = "no score" if score is None else f"score {score - now:+.1f} s from now"
                places.append((f"{name} as {tag.decode(errors='replace')}, {left}", text))
        for place, text in places:
            for number in {int(number) for number in _TASK.findall(text)}:
                found.setdefault(number, []).append(place)
    return found


def missing(
    notes: Notes, accepted: int, buried: set[int], places: Mapping[int, list[str]], *, began: float
) -> list[str]:
    """Each accepted task that neither ended nor is a dead letter, with all that is known of it."""
    told = []
    for number in range(accepted):
        if number in notes.ended or number in buried:
            continue
        starts = [start for attempt in range(4) for start in notes.starts.get((number, attempt), ())]
        said = "; ".join(
            f"attempt {start.attempt} at {start.at - began:.2f} by {start.worker}/{start.child}"
            + (f", over {start.over - began:.2f}" if start.over else ", never over")
            for start in starts
        )
        told.append(f"task {number}: {said or 'never started'}; now in {places.get(number) or NOWHERE}")
    return told


def _told(repeat: Repeat, began: float) -> str:
    before, start = repeat.earlier, repeat.start
    over = f"over {before.over - began:.2f}" if before.over is not None else "never over"
    return (
        f"task {start.task} attempt {start.attempt}: at {before.at - began:.2f} by {before.worker}/{before.child}, "
        f"{over}; again at {start.at - began:.2f} by {start.worker}/{start.child}"
    )


def _some(told: list[str]) -> list[str]:
    more = [f"             … and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return [f"             {one}" for one in told[:_SHOWN]] + more


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
