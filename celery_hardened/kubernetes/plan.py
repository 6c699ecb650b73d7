"""What the manifests say of one app, and the rules between its numbers. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from celery_hardened.errors import ConfigurationError

#: Seconds between the end of the last task and the end of its worker: results written, connections closed.
MARGIN: Final = 30

#: Seconds that a beat or an exporter needs to end: neither runs anything, and the lead is let go at once.
SHORT_GRACE: Final = 30

#: Seconds between two looks of the liveness probe, and how many in a row have to fail.
LIVE_EVERY: Final = 20
LIVE_FAILURES: Final = 3

#: Seconds between two scrapes.
SCRAPE_EVERY: Final = 15

#: Messages that may wait for each place in the pools before more workers are asked for by depth alone.
BACKLOG: Final = 10

#: Mebibytes: of a worker's main process, and of each place in its pool.
_PARENT_MIB: Final = 160
_CHILD_MIB: Final = 160

Autoscaler: TypeAlias = Literal["keda", "hpa", "none"]
Scraping: TypeAlias = Literal["podmonitor", "annotations"]

#: Characters of a name that is a label's value too.
_LONGEST: Final = 63

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers and names of one app.

    Args:
        name: Of the app; first part of every object's name.

        module: What ``celery -A`` is given.

        groups: A Deployment of workers for each, with the queues it takes from.

        grace: Seconds that a worker may take to finish what it runs; see `grace_for`.

        stall: ``hardened_health_stall``.

        scheduler: What ``celery beat -S`` is given: one of ours.

        ages: Whether the exporter tells how old the oldest message is, which it does on Redis alone. A scaler that
            asks for what is never there fails for ever, and takes no worker away.

        target_age: Seconds that the oldest message may wait before more workers are started.

    Raises:
        ConfigurationError: A name is none that Kubernetes takes, or two numbers contradict each other.
    """

    name: str
    module: str
    image: str
    namespace: str
    groups: tuple[tuple[str, ...], ...]
    concurrency: int = 4
    grace: int
    stall: float = 60.0
    port: int = 9808
    autoscaler: Autoscaler = "keda"
    scraping: Scraping = "podmonitor"
    least: int = 1
    most: int = 20
    target_age: int = 30
    prometheus: str = "http://prometheus-operated.monitoring:9090"
    beats: int = 2
    scheduler: str = "hardened"
    ages: bool = True

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("namespace", self.namespace)):
            if not _LABEL.fullmatch(value) or len(value) > 40:
                raise ConfigurationError(
                    f"--{what} {value!r}: Kubernetes takes lower-case letters, digits and dashes, 40 at most."
                )
        if not 0 <= self.least <= self.most or self.most < 1:
            raise ConfigurationError(f"--min {self.least} and --max {self.most}: the least is more than the most.")
        if self.autoscaler != "keda" and self.least < 1:
            raise ConfigurationError("--min 0 needs --autoscaler keda: nothing else starts a worker from none.")
        if not all(self.groups):
            raise ConfigurationError("--queues names no queue.")
        if len({self.workers(group) for group in self.groups}) < len(self.groups):
            raise ConfigurationError("each --queues has to begin with another queue: its first one names the workers.")

    def workers(self, group: Sequence[str]) -> str:
        """The name of a group's Deployment."""
        if len(self.groups) == 1:
            return f"{self.name}-worker"
        return f"{self.name}-worker-{slug(group[0])}"[:_LONGEST].rstrip("-")

    @property
    def memory(self) -> int:
        """Mebibytes of a worker's pod."""
        return _PARENT_MIB + self.concurrency * _CHILD_MIB

    @property
    def dead_after(self) -> int:
        """Seconds after which a worker whose loop stands still is started anew."""
        return math.ceil(self.stall) + LIVE_EVERY * LIVE_FAILURES

    @property
    def settle(self) -> int:
        """Seconds that fewer workers have to be enough before one is taken away: those that go drain for so long.

        Kubernetes takes an hour at most.
        """
        return min(3600, max(300, self.grace))


def grace_for(limits: Iterable[float | None]) -> int:
    """How long a worker may take to end: the longest hard time limit, and `MARGIN`.

    A task without a limit (``None``) has no bound that a worker could wait for; it is left out here.
    """
    return math.ceil(max((limit for limit in limits if limit is not None), default=0.0)) + MARGIN


def slug(name: str) -> str:
    """*name* as Kubernetes takes it: lower-case letters, digits, dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "celery"
