"""Probes of real workers over time: a RabbitMQ that falls silent, and a worker that stays deaf."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.client import listening
from tests.support.health import HEALTH, Probed
from tests.support.rabbitmq import RabbitMQ
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

rabbitmq_only = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
every_pool = pytest.mark.parametrize("pool", POOLS)

#: AMQP tells of a silent peer by heartbeats alone: after two of them, so after two minutes and more by default.
HEARTBEAT = {"CONF": "dict(broker_heartbeat=4)"}

StartProxy = Callable[[int], TcpProxy]


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    return Probed(tmp_path / "health")


def lives_on_unready(probed: Probed, *, seconds: float) -> None:
    """The probes of a worker whose broker is silent, until it knows and for a while more."""

    def unready() -> bool:
        live = probed.ask("livez")
        assert live.good, live
        return not probed.ask("readyz").good

    until(unready, within=120, what="the worker to know of it")
    since = time.monotonic()

    def long_enough() -> bool:
        live, ready = probed.ask("livez"), probed.ask("readyz")
        assert live.good, live
        assert not ready.good, ready
        return time.monotonic() - since > seconds

    until(long_enough, within=120, what="more than the limit of a stall to pass")


@rabbitmq_only
@every_pool
def test_a_silent_way_to_rabbitmq(
    pool: str, start_worker: StartWorker, probed: Probed, broker: Broker, start_proxy: StartProxy
) -> None:
    """Nothing comes through and nothing is refused, for longer than the limit of a stall: not ready, and alive. Ready
    again when the way is open."""
    proxy = start_proxy(broker.port)
    env = {**probed.env, **HEARTBEAT, "STALL": "15", "BROKER_URL": broker.at(proxy.port).url}
    worker = start_worker(HEALTH, pool=pool, env=env)
    probed.wait("readyz", good=True)
    if pool == "gevent":
        worker.wait_for_log("pidbox: Connected")  # on a connection of its own, and later
    proxy.silence()
    lives_on_unready(probed, seconds=25)
    proxy.heal()
    probed.wait("readyz", good=True, within=120)


@rabbitmq_only
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_rabbitmq_that_stands_still(
    pool: str, start_worker: StartWorker, probed: Probed, server_directory: Path, broker: Broker
) -> None:
    """SIGSTOP of the server, which the kernel goes on to accept connections for: not ready, and alive, and ready again
    when it goes on."""
    node = RabbitMQ(server_directory / f"frozen-{broker.queue}")
    try:
        node.start()
        start_worker(HEALTH, pool=pool, env={**probed.env, **HEARTBEAT, "STALL": "15", "BROKER_URL": node.url()})
        probed.wait("readyz", good=True)
        node.pause()
        lives_on_unready(probed, seconds=25)
        node.resume()
        probed.wait("readyz", good=True, within=120)
    finally:
        node.resume()
        node.destroy()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@every_pool
def test_a_worker_that_stays_deaf(
    pool: str, start_worker: StartWorker, load_project: LoadProject, probed: Probed
) -> None:
    """It consumes nothing and was not told to stop: alive up to the bound, and then dead until it is restarted. The
    bound is shortened here; two minutes are held by the verdict's own tests."""
    short = "\nfrom celery_hardened.health import state as verdicts\nverdicts.DEAF_DEAD = 30.0\n"
    worker = start_worker(HEALTH + short, pool=pool, env={**probed.env, "STALL": "15"})
    probed.wait("readyz", good=True)
    app = load_project(HEALTH).app
    listening(app)
    app.control.broadcast("deafen")
    probed.wait("readyz", good=False, within=100)

    def dead() -> bool:
        live = probed.ask("livez")
        facts = live.body["facts"]
        assert facts["deaf"] <= 30.0 if live.good else facts["deaf"] >= 30.0, live  # which it says rounded
        assert facts["turned"] < facts["stall"]
        return not live.good

    until(dead, within=150, what="the worker to be dead")
    assert "has not consumed" in probed.ask("livez").body["because"]
    until(lambda: not (probed.folder / "live").exists(), what="the file of a dead worker to be gone")
    worker.restart()
    probed.wait("livez", good=True)
    probed.wait("readyz", good=True)
