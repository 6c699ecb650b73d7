"""What a worker counts is what has happened: per task and outcome, in every pool, by an independent truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.counts import COUNTS, EVERYWHERE, PROCESSES, Counts, wait_for
from tests.support.health import Probed
from tests.support.worker import POOLS

#: Tasks that go to a second queue; some retry, some go back as they were.
ROUTED = ("plain", "broken", "flaky", "plain_flaky", "put_back", "rejecting")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("broker", "pool"),
    [*(("redis", pool) for pool in POOLS), *(("rabbitmq", pool) for pool in ("prefork", "threads", "gevent"))],
    indirect=["broker"],
)
def test_each_delivery_is_counted_once_by_how_it_ended(
    pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path, tmp_path: Path
) -> None:
    """No number differs from what bodies and producer know, the queue of two included: with children that are killed,
    recycled and run into both limits in prefork, with hard limits in gevent; replays, waits, expiries, revokes, bad
    messages everywhere."""
    probed = Probed(tmp_path / "health")
    routed = {f"proj.{name}": f"{broker.queue}-beside" for name in ROUTED}
    env = {**probed.env, "LEASE": "6", "CONF": f"dict(task_routes={routed!r})"}
    if pool == "prefork":
        env["RECYCLE"] = "20"
    queues = [broker.queue, f"{broker.queue}-beside"]
    start_worker(COUNTS, pool=pool, concurrency=20 if pool == "gevent" else 4, env=env, queues=queues)
    counts = Counts(load_project(COUNTS, env={"CONF": env["CONF"]}), out, probed, routed=routed)

    plan = {name: 40 if name in ("ok", "plain") else 5 for name in EVERYWHERE}
    if pool == "prefork":
        plan |= dict.fromkeys(PROCESSES, 3) | {"poisonous": 1, "soft_limit": 2}
    elif pool == "gevent":
        plan |= {"hard_limit": 3, "listed_limit": 3}
    for name, number in plan.items():
        counts.send(name, number)
    counts.send_expired(5)
    counts.send_revoked(5)
    counts.send_unknown(5)
    counts.send_malformed(5)
    counts.send_replayed(5)
    if pool != "solo":
        counts.send_waiting()
        counts.send_duplicate()
    if pool in ("prefork", "gevent"):
        counts.send_terminated()

    wait_for(counts, plan, within=180)
    assert counts.difference() == {}
    counts.check_the_rest()
