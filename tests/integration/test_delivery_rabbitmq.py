"""What RabbitMQ promises by itself: the same two guarantees that leases give on Redis."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)]


def _starts(out: Path) -> Counter[str]:
    return Counter(line.split()[1] for line in notes(out, "starts"))


def test_a_long_task_starts_once(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """A task that runs for several heartbeats beside an idle worker is started once: no time-out takes it away."""
    env = {"CONF": repr({"broker_heartbeat": 3})}
    for _ in range(2):
        start_worker(SHOP, concurrency=1, env=env)
    project = load_project(SHOP, env=env)
    assert project.slow.delay("long", 11.0).get(timeout=60) == "long"
    assert _starts(out) == {"long": 1}


def test_a_dead_workers_task_starts_elsewhere_at_once(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """The broker sees the connection of a killed worker end; what it ran and what it held starts elsewhere."""
    victim = start_worker(SHOP, concurrency=1)
    project = load_project(SHOP)
    project.slow.delay("runs", 60.0)
    until(lambda: _starts(out)["runs"] == 1, within=60, what="it to run")
    project.slow.delay("held", 0.1)
    start_worker(SHOP, concurrency=2)
    killed = time.monotonic()
    victim.kill_group()
    until(lambda: _starts(out)["runs"] == 2 and _starts(out)["held"] == 1, within=60, what="both to start elsewhere")
    assert time.monotonic() - killed < 25
