"""Lines about tasks in a real worker, however the project has its logging set up: ours once, Celery's not beside."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letter_of
from tests.support.shop import SHOP
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

#: What tasks return, and what no line may hold.
RETURNED = "returned-4242"

APP = f"""
import logging.config
import os

from celery import Celery

from celery_hardened import HardenedTask, harden

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_retry_backoff=0.1,
    hardened_retry_floor=0.05,
)


@app.task(base=HardenedTask)
def fine(order):
    return "{RETURNED}"


@app.task
def plain(order):
    return "{RETURNED}"


@app.task(base=HardenedTask, bind=True, max_retries=2)
def flaky(self, order):
    if not self.request.retries:
        raise ConnectionError("not yet")
    return "{RETURNED}"


@app.task(base=HardenedTask)
def broken(order):
    raise ValueError("broken")


harden(app)
"""

FORMAT = """
app.conf.worker_log_format = "LINE|%(levelname)s|%(name)s|%(message)s"
app.conf.worker_task_log_format = "TASK|%(levelname)s|%(name)s|%(message)s"
"""

#: As Django does when a worker sets it up: by one dict, root logger and all. Not for the process of the tests.
DICT = """
LOGGING = {{
    "version": 1,
    "disable_existing_loggers": {disable},
    "filters": {{"correlation": {{"()": "celery_hardened.correlation.CorrelationFilter"}}}},
    "formatters": {{"json": {{"()": "celery_hardened.JsonFormatter"}}}},
    "handlers": {{"lines": {{"class": "logging.StreamHandler", "formatter": "json", "filters": ["correlation"]}}}},
    "loggers": {loggers},
    "root": {{"handlers": ["lines"], "level": "INFO"}},
}}
app.conf.worker_hijack_root_logger = False
logging.config.dictConfig(LOGGING)
"""

OURS = "celery_hardened.task"
THEIRS = ("celery.worker.strategy", "celery.app.trace")

ENDS = {
    ("fine", "success"): 1,
    ("plain", "success"): 1,
    ("flaky", "retry"): 1,
    ("flaky", "success"): 1,
    ("broken", "failure"): 1,
}


def run_all(project: Any) -> None:
    sent = {name: getattr(project, name).delay("order") for name in ("fine", "plain", "flaky", "broken")}
    for name in ("fine", "plain", "flaky"):
        assert sent[name].get(timeout=60) == RETURNED
    letter_of(project, sent["broken"].id)


def records(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_format_of_the_projects(pool: str, start_worker: StartWorker, load_project: LoadProject) -> None:
    """``worker_log_format`` is what each of our lines has: one at the start, one at the end of each run, none of
    Celery's, and none with a return value."""
    source = APP + FORMAT
    worker = start_worker(source, pool=pool, wait=False)
    until(lambda: " ready." in worker.log(), within=60, what="the worker to be ready")
    run_all(load_project(source))
    worker.stop()
    log = worker.log()
    lines = re.findall(rf"^LINE\|(\w+)\|{OURS}\|proj\.(\w+)\[[\w-]{{36}}\] (\w+)", log, re.MULTILINE)
    ends = Counter((task, what) for _, task, what in lines if what != "starts")
    begun = Counter(task for _, task, what in lines if what == "starts")
    assert ends == ENDS
    assert begun == {"fine": 1, "plain": 1, "flaky": 2, "broken": 1}
    assert {level for level, task, what in lines if what == "failure"} == {"ERROR"}
    assert [line for line in log.splitlines() if any(f"|{name}|" in line for name in THEIRS)] == []
    assert RETURNED not in log


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_dict_as_djangos(pool: str, start_worker: StartWorker, load_project: LoadProject) -> None:
    """The root logger is the project's, with ``JsonFormatter``: each record is there once, with its fields."""
    source = APP + DICT.format(disable=False, loggers={})
    worker = start_worker(source, pool=pool, wait=False)
    until(lambda: " ready." in worker.log(), within=60, what="the worker to be ready")
    run_all(load_project(APP))
    worker.stop()
    told = records(worker.log())
    ours = [record for record in told if record["logger"] == OURS]
    assert Counter((end["task"][5:], end["outcome"]) for end in ours if "outcome" in end) == ENDS
    assert len(ours) == 2 * sum(ENDS.values())
    for record in ours:
        assert record["task_id"]
        assert record["correlation_id"]
    assert [record for record in told if record["logger"] in THEIRS] == []
    assert RETURNED not in worker.log()


def test_loggers_that_a_dict_silences(start_worker: StartWorker, load_project: LoadProject) -> None:
    """``disable_existing_loggers`` with ``celery`` named: ours are silent, so Celery's lines are there, once each."""
    source = APP + DICT.format(disable=True, loggers={"celery": {"level": "INFO"}})
    worker = start_worker(source, wait=False)
    until(lambda: " ready." in worker.log(), within=60, what="the worker to be ready")
    run_all(load_project(APP))
    worker.stop()
    told = records(worker.log())
    assert [record for record in told if record["logger"] == OURS] == []
    theirs = [record["message"] for record in told if record["logger"] in THEIRS]
    said = Counter(
        (found[1], found[2]) for message in theirs if (found := re.match(r"Task proj\.(\w+)\[.*?\] (\w+)", message))
    )
    assert said == {
        ("fine", "received"): 1,
        ("fine", "succeeded"): 1,
        ("plain", "received"): 1,
        ("plain", "succeeded"): 1,
        ("flaky", "received"): 2,
        ("flaky", "retry"): 1,
        ("flaky", "succeeded"): 1,
        ("broken", "received"): 1,
        ("broken", "raised"): 1,
    }


def test_all_loggers_that_a_dict_silences_but_ours(start_worker: StartWorker, load_project: LoadProject) -> None:
    """``disable_existing_loggers`` with our logger named: it speaks, alone."""
    source = APP + DICT.format(disable=True, loggers={"celery_hardened": {"level": "INFO"}})
    worker = start_worker(source, wait=False)
    project = load_project(APP)
    run_all(project)
    worker.stop()
    told = records(worker.log())
    assert Counter((end["task"][5:], end["outcome"]) for end in told if "outcome" in end) == ENDS
    assert [record for record in told if record["logger"] in THEIRS] == []
    assert RETURNED not in worker.log()


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "celery's"])
def test_a_death_is_one_error(ours: bool, start_worker: StartWorker, load_project: LoadProject) -> None:
    """Each of three deaths, the last being poison, is one ``ERROR`` of ours beside the pool's own line; without our
    records it is the line that tells of the death, and of the dead letter."""
    env = {"CONF": f"dict(hardened_task_logs={ours})"}
    worker = start_worker(SHOP, env=env)
    project = load_project(SHOP, env=env)
    assert letter_of(project, project.killer.delay("k").id).letter.reason == "poison"
    last = " poison in " if ours else "Task handler raised error: TaskProcessLostError"
    until(lambda: last in worker.log(), within=30, what="the end to be logged")
    errors = [line for line in worker.log().splitlines() if re.match(r"\[.*: (ERROR|CRITICAL)/", line)]
    of_ours = [line for line in errors if "Process 'ForkPoolWorker-" not in line]
    assert len(errors) - len(of_ours) == 3
    kinds = [re.sub(r".*?\] (?:proj\.killer\S* )?(\w+ \w+).*", r"\1", line) for line in of_ours]
    if ours:
        assert kinds == ["worker_lost in", "worker_lost in", "poison in"]
    else:
        assert kinds[:2] == ["lost its", "lost its"]
        assert "dead letter" in kinds
    assert worker.log().count("WARNING/MainProcess] proj.killer") == (2 if ours else 0)
