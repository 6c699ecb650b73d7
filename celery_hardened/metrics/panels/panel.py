"""One panel of the dashboard, and how its expressions are written. Pure.

Metrics of queues come from whoever asks the broker, so no panel selects them by ``job``; of several that tell the
same the largest is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from celery_hardened.metrics import catalogue as c
from celery_hardened.metrics.family import Family

RATE: Final = "$__rate_interval"


@dataclass(frozen=True)
class Query:
    """One expression, and how its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel.

    Args:
        text: What it says, in a sentence.

        width: Of 24.

        unit: As Grafana calls it.

        worst: From this value on it is red. ``None``: no colour says anything.
    """

    title: str
    queries: tuple[Query, ...]
    text: str
    kind: Literal["stat", "timeseries", "table"] = "timeseries"
    unit: str = "short"
    width: int = 8
    stacked: bool = False
    worst: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def of(family: Family, matchers: str = "", *, suffix: str = "") -> str:
    """The series of *family* that the variables select."""
    job = () if family in _SHARED else ('job=~"$job"',)
    queue = ('queue=~"$queue"',) if "queue" in family.labels else ()
    selected = ",".join(('namespace=~"$namespace"', *job, *queue, *((matchers,) if matchers else ())))
    return f"{family.name}{suffix}{{{selected}}}"


#: Told by whoever asks the broker.
_SHARED: Final = frozenset(
    {
        c.QUEUE_WAITING,
        c.QUEUE_DELAYED,
        c.QUEUE_UNACKED,
        c.QUEUE_OLDEST,
        c.QUEUE_CONSUMERS,
        c.QUEUE_MISSING,
        c.QUEUE_DEAD,
        c.QUEUE_SCRAPED,
        c.QUEUE_ERRORS,
        c.LETTERS,
        c.LETTERS_OLDEST,
        c.LEADER_KNOWN,
        c.LEADER_TERM,
        c.LEADER_TICK,
    }
)


def rate(family: Family, by: str, matchers: str = "") -> str:
    return f"sum by ({by}) (rate({of(family, matchers)}[{RATE}]))"


def quantile(q: float, family: Family, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({of(family, suffix='_bucket')}[{RATE}])))"


def one_of(values: frozenset[str], label: str = "outcome") -> str:
    return f'{label}=~"' + "|".join(sorted(values)) + '"'
