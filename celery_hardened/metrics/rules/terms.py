"""What the rules are written for: an app, its thresholds, and where its series are found. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from celery_hardened.metrics.catalogue import PROCESS_START
from celery_hardened.metrics.family import Family

_MATCHER: Final = r'[a-zA-Z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"'
_SELECTOR: Final = re.compile(rf"\s*(?:{_MATCHER}\s*(?:,\s*{_MATCHER}\s*)*,?\s*)?")
_LABEL: Final = re.compile(r"[a-zA-Z_]\w*")


def quoted(value: str) -> str:
    """*value* as it stands between the quotes of a matcher."""
    return value.replace("\\", "\\\\").replace('"', '\\"')


@dataclass(frozen=True)
class Thresholds:
    """From when on an alert is true. Durations are seconds."""

    oldest_age: float = 600.0
    """A message may wait so long."""

    stalled: float = 600.0
    """A queue in which messages wait may go so long without one that ends. Above the longest run of a task."""

    drain: float = 900.0
    """At the present rate, what waits may take so long."""

    failure_ratio: float = 0.05
    """So much of the runs of a task may fail, of 1."""

    min_volume: int = 20
    """A ratio of fewer runs, or a drain time of fewer messages, says nothing."""

    timeouts: int = 3
    """So many runs of one task at their time limit, in 15 minutes, are too many."""

    worker_lost: int = 3
    """So many processes that died in one task, in 15 minutes, are too many."""

    stuck: float = 3600.0
    """A run may take so long. Above the longest time limit."""

    letter_age: float = 259_200.0
    """A dead letter may lie so long before somebody looks."""

    beat_silent: float = 120.0
    """Beat may give no sign of life for so long."""

    stale: float = 120.0
    """Nobody may have looked at the queues for so long."""


@dataclass(frozen=True)
class Terms:
    """What is filled in.

    Args:
        app: Name of the app, for ``celery -A``; it becomes the label ``app`` of each alert. ``None``: any app.

        queues: Queues that have to be seen. An alert tells of one that nobody measures.

        beat: Whether the app has schedules. ``None``: unknown, and a beat that was never seen is not missed.

        broker: Rules for other kinds of broker are left out. ``None``: unknown, all are there.

        selector: Matchers, as in PromQL, added to each selection of series: ``namespace="prod"``.

        by: Labels, beside those of ours, that tell one installation from another.

        runbook: Address of the page that tells what to do, for the annotation ``runbook_url``. ``None``: none, as a
            link that leads nowhere is worse at three in the morning.

        scale: All windows and pauses are multiplied by it; thresholds are not. For tests.

    Raises:
        ValueError: *selector* is no list of matchers, or a label is none.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    app: str | None = None
    queues: tuple[str, ...] = ()
    beat: bool | None = None
    broker: Literal["redis", "rabbitmq"] | None = None
    selector: str = ""
    by: tuple[str, ...] = ("namespace",)
    runbook: str | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not _SELECTOR.fullmatch(self.selector):
            raise ValueError(f'{self.selector!r} is no list of matchers, as in \'namespace="prod",job="worker"\'')
        for label in self.by:
            if not _LABEL.fullmatch(label):
                raise ValueError(f"{label!r} cannot be the name of a label")

    # --- pieces of PromQL ---------------------------------------------------------------------------------

    def series(self, family: Family | str, matchers: str = "") -> str:
        """A selection of series."""
        name = family if isinstance(family, str) else family.name
        all_of = ",".join(part for part in (matchers, self.selector.strip().rstrip(",").strip()) if part)
        if name.startswith("{"):  # its name is a matcher itself
            return "{" + ",".join(part for part in (name[1:-1], all_of) if part) + "}"
        return f"{name}{{{all_of}}}" if all_of else name

    def labels(self, *names: str) -> str:
        """What follows ``by`` and ``on``."""
        return "(" + ", ".join((*self.by, *names)) + ")"

    def time(self, seconds: float) -> str:
        """A duration, scaled."""
        left = max(1, round(seconds * self.scale * 1000))
        words = ""
        for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
            number, left = divmod(left, size)
            words += f"{number}{unit}" if number else ""
        return words

    def risen(self, family: Family, matchers: str, seconds: float) -> str:
        """By how much counters rose, also those that began within the window.

        ``increase()`` alone does not see the first value of a series, and of most of ours that is the event: a task's
        first time-out is a series that is born at 1. Such a series counts in full, if its process is young too, or
        was scraped when the window began: a count that comes back after Prometheus could not see it is not new.
        """
        what, window = self.series(family, matchers), self.time(seconds)
        young = f"{self.series(PROCESS_START)} > time() - {seconds * self.scale:g}"
        return (
            f"(\n    {what}\n  unless\n    {what} offset {window}\n"
            f"  and on (job, instance) ({young} or up offset {window} == 1)\n)\n"
            f"or\nincrease({what}[{window}])"
        )
