"""Every broker with every pool, through pytest-celery's own nodes and setups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery, shared_task
from celery.exceptions import NotRegistered
from celery.result import AsyncResult
from pytest_celery import CeleryTestSetup, RedisTestBroker, ping

from tests.support import matrix_tasks
from tests.support.client import client_side
from tests.support.notes import notes
from tests.support.pytest_celery_nodes import ResultBackend, ValkeyNode
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.chaos]


class MatrixSetup(CeleryTestSetup):  # type: ignore[misc]
    """Redis hands an abandoned message out again after seconds instead of an hour."""

    @classmethod
    def update_app_config(cls, app: Celery) -> None:
        app.conf.worker_prefetch_multiplier = 1
        if app.conf.broker_url.startswith("redis"):
            app.conf.broker_transport_options = {
                "visibility_timeout": 8,  # a worker that stands still for less keeps its message
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
            }


@pytest.fixture
def celery_setup_cls() -> type[CeleryTestSetup]:
    return MatrixSetup


@pytest.fixture
def default_worker_app(celery_setup_app: Celery) -> Celery:
    return celery_setup_app


@pytest.fixture
def default_worker_tasks(default_worker_tasks: set[Any]) -> set[Any]:
    return default_worker_tasks | {matrix_tasks}


def test_task_survives_its_worker(celery_setup: CeleryTestSetup, worker_pool: str, out: Path) -> None:
    """A worker answers; killed in the middle of a task, it runs the task again when it is back."""
    worker = celery_setup.worker
    assert celery_setup.ready(ping=True, control=True, docker=True)
    if worker_pool == "gevent" and isinstance(celery_setup.broker, RedisTestBroker):
        # Stock kombu sweeps for abandoned messages only after a poll without
        # events; without an event loop every poll ends with one.
        return
    result = matrix_tasks.nap.s().apply_async(queue=worker.worker_queue)
    until(lambda: len(notes(out, "naps")) == 1, what="the nap to start")
    killed = worker.pids()

    worker.kill()
    assert worker.container.status == "exited"
    (out / "killed").touch()
    worker.restart()

    assert result.get(timeout=60) not in killed
    assert notes(out, "naps") == [result.id, result.id]


@pytest.mark.parametrize("worker_pool", ["prefork"], indirect=True)
def test_nodes_can_be_inspected(celery_setup: CeleryTestSetup) -> None:
    """Logs, processes, commands, control and restarts of pytest-celery work on processes."""
    worker = celery_setup.worker

    worker.assert_log_exists("ready.")
    worker.assert_log_does_not_exist("Traceback")
    assert len(worker.get_running_processes_info(["pid", "cmdline"])) >= 3
    assert worker.container.exec_run("python -c 'print(1)'") == (0, b"1\n")
    assert worker.hostname() in celery_setup.app.control.inspect(timeout=30, limit=1).ping()

    worker.restart()

    assert ping.s().apply_async(queue=worker.worker_queue).get(timeout=30) == "pong"


def test_the_end_of_results_asks_no_stranger(default_redis_backend: ValkeyNode) -> None:
    """What another test has left alive is not asked what it is: a shared task that the app has not would raise."""

    def nobody() -> None: ...

    with client_side():
        with client_side():
            stranger = shared_task(name="of.nobody")(nobody)
        result = AsyncResult("one", app=Celery())
        ResultBackend(default_redis_backend).teardown()
        assert result.backend is None
        with pytest.raises(NotRegistered):
            isinstance(stranger, AsyncResult)
