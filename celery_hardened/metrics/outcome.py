"""How a delivery ends: one of these, and each delivery that a worker took ends once. Pure."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Outcome: TypeAlias = Literal[
    "success",
    "replayed",
    "failure",
    "timeout",
    "poison",
    "reject",
    "ignore",
    "revoked",
    "expired",
    "terminated",
    "superseded",
    "deduplicated",
    "unknown",
    "malformed",
    "retry",
    "waited",
    "requeue",
    "worker_lost",
    "lease_lost",
]

#: What each means, for the reference page and the help of the metric.
MEANING: Final[dict[Outcome, str]] = {
    "success": "the body returned",
    "replayed": "its work was done before: the kept result is its result, and the body did not run",
    "failure": "the body raised, and it is not tried again",
    "timeout": "it ran into its time limit, and is not tried again",
    "poison": "it has taken its process down too often, and is not started again",
    "reject": "the task raised `Reject`",
    "ignore": "the task raised `Ignore`, or replaced itself",
    "revoked": "it was revoked before it began",
    "expired": "it came after its `expires`",
    "terminated": "it was revoked while it ran, and ended",
    "superseded": "a later run of its schedule has taken its place",
    "deduplicated": "a second message of what has run, or runs: a slot, or a redrive",
    "unknown": "no task of this app has its name",
    "malformed": "it is no message of Celery's, or cannot be decoded",
    "retry": "it is tried again, as another message",
    "waited": "it could not begin yet (its key is held, a store is away), and comes back",
    "requeue": "it went back to its queue as it was",
    "worker_lost": "its process died; it starts again if it may, else it is a dead letter `lost`",
    "lease_lost": "it is another worker's by now; what was done here changes nothing there",
}

#: Those after which the work itself is over.
FINAL: Final[frozenset[Outcome]] = frozenset(get_args(Outcome)) - {
    "retry",
    "waited",
    "requeue",
    "worker_lost",
    "lease_lost",
}

#: Those that somebody should look at.
FAILED: Final[frozenset[Outcome]] = frozenset({"failure", "timeout", "poison", "unknown", "malformed", "worker_lost"})

#: Shown as 0 for each known task from the start: an increase from nothing is invisible to ``increase()``.
FROM_THE_START: Final[tuple[Outcome, ...]] = ("success", "failure", "retry")
