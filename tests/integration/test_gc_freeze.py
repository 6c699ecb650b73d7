"""What a worker holds at its start is left out of Python's garbage collection, in the process that runs the task."""

from __future__ import annotations

import pytest

from celery_hardened.pipeline.gc_freeze import BORN_FROZEN
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.support.worker import POOLS

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

SOURCE = """
import gc
import os
from types import FunctionType

from celery import Celery

from celery_hardened import HardenedTask, harden

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
)
app.conf.update(eval(os.environ.get("CONF", "{}")))
harden(app)


@app.task(base=HardenedTask)
def looks():
    '''What is frozen here, what is not, and whether the tracers of tasks are among the latter.'''
    functions = [found for found in gc.get_objects() if type(found) is FunctionType]
    tracers = sum(1 for found in functions if found.__qualname__.startswith("build_tracer."))
    return gc.get_freeze_count(), len(gc.get_objects()), tracers
"""

INSIDE = """
import gc, proj
from celery.contrib.testing.worker import start_worker

proj.app.loader.import_default_modules()
with start_worker(proj.app, perform_ping_check=False, shutdown_timeout=60):
    found = proj.looks.delay().get(timeout=60, disable_sync_subtasks=False)
    print("looked %d %d %d" % tuple(found), flush=True)  # one write: whoever sees the word sees the numbers
"""


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_of_any_pool_is_frozen(pool: str, start_worker: StartWorker, load_project: LoadProject) -> None:
    """Nearly all that the process holds is frozen where a task runs, tracers made after the fork included; in prefork
    also in a child that was forked after the worker was ready."""
    start_worker(SOURCE, pool=pool, args=["--max-tasks-per-child", "1"] if pool == "prefork" else [])
    project = load_project(SOURCE)
    for _ in range(6):
        frozen, others, tracers = project.looks.delay().get(timeout=60)
        assert frozen > 20_000
        assert others < frozen / 4
        assert tracers == 0


@pytest.mark.parametrize(
    "conf",
    ["{'hardened_gc_freeze': False}", "{'hardened_observe': True}"],
    ids=["off", "observe"],
)
def test_switched_off(conf: str, start_worker: StartWorker, load_project: LoadProject) -> None:
    """Nothing is frozen by whoever has switched it off, and nothing by a dry run."""
    start_worker(SOURCE, env={"CONF": conf})
    frozen, others, _ = load_project(SOURCE).looks.delay().get(timeout=60)
    assert frozen < BORN_FROZEN < others


@pytest.mark.parametrize("own", ["gc.disable()", "gc.freeze()"], ids=["disabled", "frozen"])
def test_a_project_that_sees_to_it_itself(own: str, start_worker: StartWorker, load_project: LoadProject) -> None:
    """Who disables the collector, or freezes, is left with just that: nothing more is frozen."""
    source = f"{SOURCE}\n{own}\nits_own = gc.get_freeze_count()\n@app.task\ndef own():\n    return its_own\n"
    start_worker(source)
    project = load_project(SOURCE + "\n@app.task\ndef own(): ...\n")
    frozen, _, _ = project.looks.delay().get(timeout=60)
    its_own = project.own.delay().get(timeout=60)
    assert its_own * 0.9 <= frozen <= its_own  # what is frozen can still end, by its references


def test_a_worker_inside_another_program(start_process: StartProcess) -> None:
    """The test worker of ``celery.contrib.testing`` freezes nothing: what the program holds is not the worker's."""
    program = start_process(SOURCE, "python", "-c", INSIDE)
    program.wait_for_log("looked ", within=60)
    line = next(line for line in program.log().splitlines() if line.startswith("looked "))
    frozen, others = (int(word) for word in line.split()[1:3])
    assert frozen < BORN_FROZEN < others
