"""What a metric is: its name, its labels, its buckets. Pure; all of ours are in ``catalogue``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "celery_hardened_"

#: What takes the place of a label value beyond its cap.
OTHER: Final = "other"


@dataclass(frozen=True, eq=False)
class Family:
    """One metric with all its series. Compared and hashed by identity: it is a key on hot paths.

    Args:
        name: As it is exported; counters end in ``_total``, durations in ``_seconds``.

        labels: Names of the labels, in the order in which values are given. Never a host, an id or a message.

        buckets: Upper bounds of a histogram, rising; ``+Inf`` is added.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.startswith(PREFIX):
            raise ValueError(f"{self.name} does not begin with {PREFIX}")
        if (self.kind == "counter") is not self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters, and they alone, end in _total")
        if (self.kind == "histogram") is not bool(self.buckets):
            raise ValueError(f"{self.name}: histograms, and they alone, have buckets")
