"""The ground the other tests stand on, proven with plain Celery: workers, deaths, restarts, cuts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from celery.exceptions import TimeoutError as CeleryTimeoutError

from tests.fixtures.processes import LoadProject, RunCelery, StartProcess, StartWorker
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = pytest.mark.integration

SOURCE = """
import os, time
from celery import Celery
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.task_default_queue = os.environ["QUEUE"]
app.conf.worker_prefetch_multiplier = 1
if app.conf.broker_url.startswith("redis"):
    app.conf.broker_transport_options = {
        "visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
    }
else:
    # Without confirms a publish returns before the broker has the message.
    app.conf.broker_transport_options = {"confirm_publish": True}

@app.task
def add(x, y):
    return x + y

@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def nap(self, seconds):
    note("naps", self.request.id, os.getpid())
    time.sleep(seconds)
    return os.getpid()
"""


@pytest.mark.parametrize("pool", POOLS)
def test_worker_runs_a_task(start_worker: StartWorker, load_project: LoadProject, pool: str) -> None:
    """Every pool runs a task on every broker and answers through the result backend."""
    start_worker(SOURCE, pool=pool)
    proj = load_project(SOURCE)

    assert proj.add.delay(2, 3).get(timeout=30) == 5


def test_killed_child_runs_elsewhere(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """SIGKILL to one pool child: another child of the same worker runs the task."""
    worker = start_worker(SOURCE, concurrency=1)
    proj = load_project(SOURCE)
    result = proj.nap.delay(5)  # so long that it is killed in its midst, also where this test stands still meanwhile
    until(lambda: notes(out, "naps"), what="the nap to start")

    victim = worker.kill_child()

    assert result.get(timeout=60) != victim
    assert worker.running


@pytest.mark.chaos
def test_killed_group_runs_elsewhere(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """SIGKILL to a whole worker: nothing of it is left, and the next worker runs the task."""
    worker = start_worker(SOURCE)
    children = worker.children()
    result = load_project(SOURCE).nap.delay(5)
    until(lambda: notes(out, "naps"), what="the nap to start")
    began = time.monotonic()

    worker.kill_group()
    until(lambda: not any(map(psutil.pid_exists, children)), within=10, what="the pool children to be gone")
    # kombu 5.6 looks for abandoned messages when it connects, and then not for a hundred seconds.
    until(lambda: time.monotonic() - began > 4, within=60, what="the visibility timeout of 3 s to be over")
    other = start_worker(SOURCE)

    assert len(children) == 2
    assert result.get(timeout=60) in other.children()


@pytest.mark.chaos
@pytest.mark.mortal
def test_restarted_broker_keeps_its_messages(
    broker: Broker, start_worker: StartWorker, load_project: LoadProject
) -> None:
    """A message accepted before the broker was killed is delivered after it is back."""
    result = load_project(SOURCE).add.delay(2, 3)

    broker.server.kill()
    broker.server.start()
    start_worker(SOURCE)

    assert result.get(timeout=30) == 5


@pytest.mark.chaos
def test_worker_comes_back_after_a_cut(
    broker: Broker, start_worker: StartWorker, load_project: LoadProject, start_proxy: Callable[[int], TcpProxy]
) -> None:
    """A worker behind a proxy reconnects when the line is back."""
    proxy = start_proxy(broker.port)
    worker = start_worker(SOURCE, env={"BROKER_URL": broker.at(proxy.port).url})
    proj = load_project(SOURCE)
    assert proj.add.delay(1, 1).get(timeout=30) == 2
    before = proxy.accepted

    proxy.down()
    until(lambda: "onnection to broker lost" in worker.log(), what="the worker to notice the cut")
    proxy.heal()

    def adds() -> bool:
        try:
            return bool(proj.add.delay(2, 3).get(timeout=10) == 5)
        except CeleryTimeoutError:
            return False

    # More than once: the server may still hand a message to the connection that was cut (kombu's
    # blocking pop), and that one is lost. What is asked here is whether the worker comes back.
    until(adds, within=120, what="the worker to work again")
    assert proxy.accepted > before


@pytest.mark.parametrize("broker", ["redis", "redis7"], indirect=True)
def test_commands_and_scripts_see_the_project(
    broker: Broker, run_celery: RunCelery, start_process: StartProcess
) -> None:
    """Commands and scripts run beside workers, on the same app module and the same broker."""
    script = start_process(SOURCE, "python", "-c", "import proj; proj.add.delay(1, 1); print('sent')")
    assert script.wait() == 0, script.log()

    shown = run_celery(SOURCE, "report")

    assert shown.returncode == 0, shown.stderr
    assert broker.queue in shown.stdout
