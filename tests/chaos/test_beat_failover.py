"""Who stands by takes over, and soon. The figures proper are `tests.chaos.beat_failover`'s."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.beat_failover import Kind, Pair, bound

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow]

#: So long that who waits for its end is told from who was told, or has seen the connection go.
TTL = 15.0

#: Seconds that any take-over may take where a machine stands still for a while.
SLACK = 10.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    beats = Pair(tmp_path, ttl=TTL)
    try:
        beats.start()
        yield beats
    finally:
        beats.stop()


def test_the_other_beat_fires_soon(pair: Pair, subtests: pytest.Subtests) -> None:
    """After SIGTERM and SIGKILL of the leader the standby fires long before its lease ends, and after SIGSTOP soon
    after that: within five times what is promised, or ten seconds."""
    kinds: tuple[Kind, ...] = ("SIGTERM", "SIGKILL", "SIGSTOP")
    for kind in kinds:
        with subtests.test(kind):
            assert pair.fail_over(kind) <= max(SLACK, 5 * bound(kind, TTL))
