"""Where processes answer: ports that are taken, beats, and what is left of a process that was killed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.health import HEALTH, Probed
from tests.support.ports import free_port
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]


@pytest.mark.parametrize("pool", POOLS)
def test_metrics_of_a_worker(pool: str, start_worker: StartWorker, load_project: LoadProject, tmp_path: Path) -> None:
    """A worker of any pool shows what it did at the address that it logs and writes down."""
    probed = Probed(tmp_path / "health")
    worker = start_worker(HEALTH, pool=pool, env=probed.env)
    load_project(HEALTH).nap.delay(0).get(timeout=60)
    done = 'celery_hardened_tasks_total{task="proj.nap"'
    until(
        lambda: any(line.startswith(done) and line.endswith('"success"} 1') for line in probed.metrics().splitlines()),
        what="the task to be counted",
    )
    assert f"metrics and health at {probed.url}" in worker.log()


def test_a_port_that_is_taken(start_worker: StartWorker, load_project: LoadProject, tmp_path: Path) -> None:
    """The second worker of a host says what to do and works on without; when the first has ended, it has the port."""
    port = free_port()
    first, second = Probed(tmp_path / "first"), Probed(tmp_path / "second")
    for probed in (first, second):
        probed.env["HARDENED_HTTP"] = f"127.0.0.1:{port}"
    holder = start_worker(HEALTH, env=first.env)
    waiting = start_worker(HEALTH, env=second.env)
    waiting.wait_for_log(f"metrics and health cannot be served at 127.0.0.1:{port}")
    assert "Give each process of a host a port of its own" in waiting.log()
    until(lambda: (second.folder / "ready").exists(), what="the second worker to be ready")
    assert not (second.folder / "http").exists()
    holder.stop()
    assert load_project(HEALTH).nap.delay(0).get(timeout=60)
    assert second.url == f"http://127.0.0.1:{port}/"
    second.wait("readyz", good=True)
    assert "celery_hardened_http_bind_failures_total " in second.metrics()
    assert waiting.log().count("cannot be served") == 1


def test_a_worker_that_was_killed_leaves_its_port(start_worker: StartWorker, tmp_path: Path) -> None:
    """Its pool processes, which may run on for a while, hold none of its sockets."""
    probed = Probed(tmp_path / "health")
    worker = start_worker(HEALTH, env=probed.env)
    port = int(probed.url.rstrip("/").rpartition(":")[2])
    children = worker.children()
    assert children
    worker.kill()
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        pass


def test_no_address(start_worker: StartWorker, tmp_path: Path) -> None:
    """A worker whose address is none does not start, and says what may be written."""
    worker = start_worker(HEALTH, env={"HARDENED_HTTP": "localhost"}, wait=False)
    assert worker.wait(within=60) != 0
    assert "$HARDENED_HTTP='localhost' is no address. Write a port (9808)" in worker.log()


def test_beats(start_beat: StartBeat, tmp_path: Path) -> None:
    """A beat that leads and one that stands by are both ready; the standby that takes over stays so."""
    leading, standing = Probed(tmp_path / "leader"), Probed(tmp_path / "standby")
    calm = {"STALL": "60"}  # a busy machine may hold up their loops
    leader = start_beat(HEALTH, env={**leading.env, **calm})
    start_beat(HEALTH, env={**standing.env, **calm}, leads=False).wait_standing_by()
    assert "leads" in leading.wait("readyz", good=True).body["because"]
    assert "stands by" in standing.wait("readyz", good=True).body["because"]
    for probed in (leading, standing):
        assert probed.ask("livez").good
        assert probed.ask("startupz").good
        assert "celery_hardened_beat_leader" in probed.metrics()
    leader.stop()
    assert list(leading.folder.iterdir()) == []
    until(lambda: "leads" in standing.ask("readyz").body["because"], what="the standby to lead")


def test_a_beat_without_its_redis(start_beat: StartBeat, tmp_path: Path) -> None:
    """A beat whose Redis is away is not ready, for it cannot tell who leads; and it is alive."""
    probed = Probed(tmp_path / "health")
    nowhere = {"RECORDS_URL": f"redis://127.0.0.1:{free_port()}/0", "STALL": "60"}
    start_beat(HEALTH, env={**probed.env, **nowhere}, leads=False)
    red = probed.wait("readyz", good=False)
    assert "cannot tell who leads" in red.body["because"]
    assert probed.ask("livez").good
    assert not probed.ask("startupz").good


def test_a_beat_in_a_worker(start_worker: StartWorker, tmp_path: Path) -> None:
    """`worker -B`: the worker answers, and the beat in it does not fight for the address or the files."""
    probed = Probed(tmp_path / "health")
    port = free_port()
    probed.env["HARDENED_HTTP"] = f"127.0.0.1:{port}"
    worker = start_worker(HEALTH, env=probed.env, args=["-B", "--scheduler", "hardened"])
    worker.wait_for_log("schedules, term")
    assert "pool" in probed.wait("readyz", good=True).body["facts"]
    assert "cannot be served" not in worker.log()
    assert worker.log().count("metrics and health at") == 1


@pytest.mark.parametrize("role", ["prefork", "solo", "beat"])
def test_queues_on_request(
    role: str, start_worker: StartWorker, start_beat: StartBeat, load_project: LoadProject, tmp_path: Path
) -> None:
    """`hardened_metrics_queues`: a worker or a beat tells of the broker's queues too, and ends in good time."""
    probed = Probed(tmp_path / "health")
    env = {**probed.env, "CONF": "{'hardened_metrics_queues': True}"}
    process = start_beat(HEALTH, env=env) if role == "beat" else start_worker(HEALTH, pool=role, env=env)
    project = load_project(HEALTH)
    queue = project.app.conf.task_default_queue
    if role == "beat":
        project.nap.delay(0)  # nobody takes it
    waits = f'celery_hardened_queue_waiting{{queue="{queue}"}} {int(role == "beat")}'
    until(lambda: waits in probed.metrics().splitlines(), within=30, what=waits)
    process.stop()
    assert "Traceback" not in process.log()
