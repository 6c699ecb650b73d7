"""How long a message has waited, by what it says of itself."""

from __future__ import annotations

import pytest

from celery_hardened.metrics.queue_reading import waited

NOW = 1_000_000_000.0
SOON = "2001-09-09T01:48:20+00:00"  # NOW + 100
BEFORE = "2001-09-09T01:46:30+00:00"  # NOW - 10


@pytest.mark.parametrize(
    ("published", "eta", "seconds"),
    [
        (NOW - 60, "", 60),
        (NOW - 60, BEFORE, 10),
        (NOW - 5, BEFORE, 5),
        (NOW - 60, SOON, 60),
        (NOW - 60, BEFORE.replace("+00:00", "Z"), 10),
        (NOW - 60, BEFORE.removesuffix("+00:00"), 60),
        (NOW - 60, "tomorrow", 60),
        (NOW + 60, "", 0),
        (None, BEFORE, None),
        (None, "", None),
    ],
    ids=[
        "since its publish",
        "since it was due",
        "a redrive of what was due long ago",
        "not due: until a worker puts it aside",
        "Z",
        "a local time",
        "no time at all",
        "a producer whose clock is ahead",
        "a foreign message with an eta",
        "a foreign message",
    ],
)
def test_waited(published: float | None, eta: str, seconds: float | None) -> None:
    """From the publish, or from when it was due; a message that does not say when it was published gives nothing."""
    assert waited(published=published, eta=eta, now=NOW) == seconds
