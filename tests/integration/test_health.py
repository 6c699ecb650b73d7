"""Probes of real workers: what turns them red, and what must not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_hardened.pipeline.worker_health import NO_ANSWER
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.client import listening
from tests.support.health import HEALTH, Probed
from tests.support.notes import notes
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = pytest.mark.integration

redis_only = pytest.mark.parametrize("broker", ["redis"], indirect=True)
every_pool = pytest.mark.parametrize("pool", POOLS)

StartProxy = Callable[[int], TcpProxy]


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    return Probed(tmp_path / "health")


def test_ready_and_cancelled(
    start_worker: StartWorker, load_project: LoadProject, probed: Probed, broker: Broker
) -> None:
    """A worker that consumes is green on all probes; one that was told to stop consuming is not ready, but lives."""
    worker = start_worker(HEALTH, env=probed.env)
    ready = probed.wait("readyz", good=True)
    assert ready.body["facts"]["queues"] == [broker.queue]
    assert probed.ask("livez").good
    assert probed.ask("startupz").good
    assert "celery_hardened: metrics and health at http://127.0.0.1:" in worker.log()

    app = load_project(HEALTH).app
    listening(app)
    control = app.control
    control.cancel_consumer(broker.queue)
    red = probed.wait("readyz", good=False)
    assert broker.queue in red.body["because"]
    assert probed.ask("livez").good
    control.add_consumer(broker.queue)
    probed.wait("readyz", good=True)


@pytest.mark.parametrize("alone", [False, True], ids=["beside another", "alone"])
def test_a_broadcast(alone: bool, start_worker: StartWorker, probed: Probed, broker: Broker) -> None:
    """A worker that hears broadcasts misses no queue: none would be ready, and after a while all were restarted."""
    heard = f'Broadcast("all-{broker.queue}", queue="bcast-{broker.queue}")'
    queues = heard if alone else f"Queue({broker.queue!r}), {heard}"
    conf = f"app.conf.task_queues = [{queues}]"
    start_worker(f"{HEALTH}\nfrom kombu import Queue\nfrom kombu.common import Broadcast\n{conf}\n", env=probed.env)
    probed.wait("readyz", good=True)
    until(lambda: probed.ask("readyz").body["facts"]["turned"] < 2, what="the loop to turn")
    looked = time.monotonic()
    until(lambda: time.monotonic() - looked > NO_ANSWER + 2, what="as long as no answer may take")
    facts = probed.ask("readyz").body["facts"]
    assert facts["missing"] == []
    assert f"bcast-{broker.queue}" in facts["queues"]


@pytest.mark.slow
@redis_only
@every_pool
def test_a_frozen_broker(
    pool: str, start_worker: StartWorker, probed: Probed, broker: Broker, start_proxy: StartProxy
) -> None:
    """The broker falls silent, with no error and for longer than the limit of a stall: the worker is not ready and
    stays alive. It comes back, and so does the worker."""
    proxy = start_proxy(broker.port)
    start_worker(HEALTH, pool=pool, env={**probed.env, "STALL": "20", "BROKER_URL": broker.at(proxy.port).url})
    probed.wait("readyz", good=True)
    proxy.silence()
    probed.wait("readyz", good=False)

    def long_enough() -> bool:
        live = probed.ask("livez")
        assert live.good, live
        return bool(live.body["facts"]["turned"] > 1.5 * live.body["facts"]["stall"])

    until(long_enough, within=150, what="more than the limit to pass without a turn of the loop")
    proxy.heal()
    probed.wait("readyz", good=True)


@redis_only
def test_a_broker_that_is_away_at_the_start(
    start_worker: StartWorker, probed: Probed, broker: Broker, start_proxy: StartProxy
) -> None:
    """A worker whose broker is away when it starts has not started, and is alive all the same."""
    proxy = start_proxy(broker.port)
    proxy.down()
    # Longer than a busy machine takes from the first answer to the first try to connect.
    env = {**probed.env, "STALL": "10", "BROKER_URL": broker.at(proxy.port).url}
    start_worker(HEALTH, env=env, wait=False)

    def tries() -> bool:
        live = probed.ask("livez")
        assert live.good, live
        return live.body["facts"]["tried"] is not None and live.body["facts"]["turned"] > live.body["facts"]["stall"]

    until(tries, within=60, what="the limit of a stall to pass in tries to connect")
    assert not probed.ask("startupz").good
    assert not probed.ask("readyz").good
    proxy.heal()
    probed.wait("startupz", good=True)
    probed.wait("readyz", good=True)


@redis_only
def test_a_long_task_in_the_solo_pool(
    start_worker: StartWorker, load_project: LoadProject, probed: Probed, out: Path
) -> None:
    """A task of the solo pool holds up the loop for longer than the limit of a stall: the worker lives and is ready."""
    start_worker(HEALTH, pool="solo", env=probed.env)
    probed.wait("readyz", good=True)
    running = load_project(HEALTH).gated.delay()
    until(lambda: notes(out, "naps"), what="the task to start")

    def held_up() -> bool:
        live, ready = probed.ask("livez"), probed.ask("readyz")
        assert live.good, live
        assert ready.good, ready
        return live.body["facts"]["turned"] > 1.5 * live.body["facts"]["stall"]

    until(held_up, within=60, what="the task to hold up the loop for longer than the limit")
    (out / "gate").touch()
    running.get(timeout=60)
    probed.wait("readyz", good=True)


@redis_only
@every_pool
def test_a_loop_that_is_held_up(
    pool: str, start_worker: StartWorker, load_project: LoadProject, probed: Probed
) -> None:
    """The loop that consumes stands still, and no task is the reason: the worker is dead, though all its other threads
    and greenlets go on."""
    start_worker(HEALTH, pool=pool, env=probed.env)
    probed.wait("readyz", good=True)
    app = load_project(HEALTH).app
    listening(app)
    app.control.broadcast("hold_up", arguments={"seconds": 300})
    red = probed.wait("livez", good=False)
    assert "has not turned" in red.body["because"]
    assert not probed.ask("readyz").good
    until(lambda: not (probed.folder / "live").exists(), what="the file of a dead worker to be gone")


@pytest.mark.slow
@every_pool
def test_a_worker_that_went_deaf(
    pool: str, start_worker: StartWorker, load_project: LoadProject, probed: Probed
) -> None:
    """Its loop turns, it is connected, it was not told to stop, and it consumes nothing: it is not ready."""
    start_worker(HEALTH, pool=pool, env=probed.env)
    probed.wait("readyz", good=True)
    app = load_project(HEALTH).app
    listening(app)
    app.control.broadcast("deafen")
    red = probed.wait("readyz", good=False, within=100)
    assert "has not consumed" in red.body["because"]
    assert probed.ask("livez").good


@redis_only
@every_pool
def test_draining(pool: str, start_worker: StartWorker, load_project: LoadProject, probed: Probed, out: Path) -> None:
    """A worker that was told to end is not ready while its last task runs, and lives. It takes its files along."""
    worker = start_worker(HEALTH, pool=pool, env=probed.env)
    probed.wait("readyz", good=True)
    load_project(HEALTH).gated.delay()
    until(lambda: notes(out, "naps"), what="the task to start")
    until(lambda: (probed.folder / "ready").exists(), what="the file of a ready worker")
    worker.signal(signal.SIGTERM)
    red = probed.wait("readyz", good=False)
    assert "told to stop" in red.body["because"]
    assert probed.ask("livez").good
    until(lambda: not (probed.folder / "ready").exists(), what="its file to be gone")
    assert (probed.folder / "live").exists()
    (out / "gate").touch()
    worker.wait(within=60)
    assert list(probed.folder.iterdir()) == []


@redis_only
def test_probe_files(start_worker: StartWorker, probed: Probed) -> None:
    """The commands of the documentation say what HTTP says, also of a worker that was killed."""
    documented = "find /run/celery/live -mmin -1 | grep -q ."
    assert documented in (Path(__file__).parents[2] / "docs/how-to/health-probes.md").read_text()
    worker = start_worker(HEALTH, env={"HARDENED_HEALTH_DIR": str(probed.folder)})

    def command(name: str) -> bool:
        shell = documented.replace("/run/celery/live", str(probed.folder / name))
        return subprocess.run(["sh", "-c", shell], capture_output=True, check=False).returncode == 0

    for name in ("live", "ready", "started"):
        until(lambda name=name: command(name), what=f"the file {name}")  # type: ignore[misc]
    before = (probed.folder / "live").stat().st_mtime
    until(lambda: (probed.folder / "live").stat().st_mtime > before, what="the file to be renewed")
    assert not (probed.folder / "http").exists()
    worker.kill_group()
    assert command("live")  # as long as the file is young
    old = (probed.folder / "live").stat().st_mtime - 90
    os.utime(probed.folder / "live", (old, old))
    assert not command("live")
