"""A worker's connections are cut, in every pool: what runs goes on, what waits is not forgotten."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil
import pytest
import redis

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.mortal]

CUTS = 4
LEASE = {"CONF": repr({"hardened_lease": 10.0, "worker_prefetch_multiplier": 3})}


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("pool", POOLS)
def test_cut_connections_cost_no_start_and_no_message(
    start_worker: StartWorker, load_project: LoadProject, out: Path, environment: dict[str, str], pool: str
) -> None:
    """
    All connections of a busy worker are killed four times. The worker stays, every order ends, each
    is started once, and nothing stays leased: no job was forgotten in a pipe, a buffer or a queue.
    """
    worker = start_worker(SHOP, pool=pool, concurrency=2, env=LEASE)
    project = load_project(SHOP, env=LEASE)
    orders = [f"o{n}" for n in range(30)]
    for order in orders:
        project.slow.delay(order, 0.2)
    with redis.Redis.from_url(environment["BROKER_URL"]) as client:
        for cut in range(CUTS):
            enough = (cut + 1) * len(orders) // (2 * CUTS)
            until(lambda enough=enough: len(notes(out, "ends")) >= enough, within=120, what=f"{enough} orders to end")
            client.client_kill_filter(_type="normal", skipme=True)
        until(lambda: len(notes(out, "ends")) >= len(orders), within=120, what="all orders to end")
        until(lambda: not client.hlen("unacked"), within=60, what="every lease to end")
    starts = Counter(line.split()[1] for line in notes(out, "starts"))
    assert starts == dict.fromkeys(orders, 1)
    assert worker.running
    late = project.fine.delay("late")
    assert late.get(timeout=60) == "late"


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_what_a_frozen_pool_process_holds_does_not_start_late(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    A job lies in the pipe of a pool process when the whole worker freezes for longer than its lease. It
    starts elsewhere, and not a second time when the worker wakes.
    """
    env = {"CONF": repr({"hardened_lease": 5.0, "hardened_task_logs": False})}  # Celery says what it has received
    frozen = start_worker(SHOP, concurrency=1, env=env)
    project = load_project(SHOP, env=env)
    first = project.slow.delay("first", 0.1)
    first.get(timeout=60)
    until(lambda: not _leased(project), within=60, what="the pool to be warm, and free")
    [child] = [psutil.Process(pid) for pid in frozen.children()]
    child.suspend()  # the next job is written to its pipe, and nobody reads it
    second = project.slow.delay("second", 0.1)
    until(lambda: f"{second.id}] received" in frozen.log(), within=60, what="the job to be handed over")
    frozen.pause()
    start_worker(SHOP, concurrency=1, env=env)
    until(lambda: len(notes(out, "ends")) == 2, within=60, what="it to run elsewhere")
    frozen.resume()
    child.resume()
    project.slow.delay("third", 0.1)
    project.slow.delay("fourth", 0.1)
    until(lambda: len(notes(out, "ends")) >= 4, within=60, what="the later ones to run")
    until(lambda: not _leased(project), within=60, what="all to be acknowledged")
    assert Counter(line.split()[1] for line in notes(out, "starts"))["second"] == 1


def _leased(project: object) -> list[bytes]:
    with redis.Redis.from_url(project.app.conf.broker_url) as client:  # type: ignore[attr-defined]
        return client.hkeys("unacked")
