"""The log tells of each delivery's end once, with the words of the count, whoever of the two processes knew of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.counts import COUNTS, EVERYWHERE, PROCESSES, Counts, Key, wait_for
from tests.support.health import Probed
from tests.support.until import until

#: Exceptions of a project's own cross to the main process as a stand-in, and one of them takes no attribute.
OWN_ERRORS = """
import logging
from dataclasses import dataclass

from celery.signals import setup_logging

from celery_hardened import JsonFormatter


class ShopError(Exception):
    pass


@dataclass(frozen=True)
class FrozenError(Exception):
    order: str


@app.task(base=Counted)
def own(order):
    ends(own, "failure")
    raise ShopError(order)


@app.task(base=Counted)
def frozen(order):
    ends(frozen, "failure")
    raise FrozenError(order)


@app.task
def plain_own(order):
    ends(plain_own, "failure")
    raise ShopError(order)


@setup_logging.connect
def print_json(loglevel=logging.INFO, **_):
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonFormatter())
    logging.basicConfig(level=loglevel, handlers=[lines], force=True)
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_each_end_is_one_record(
    pool: str, start_worker: StartWorker, load_project: LoadProject, out: Path, tmp_path: Path
) -> None:
    """Records that have an outcome are as many as the page counts, task by task and outcome by outcome, and name the
    class that was raised: of failures with exceptions of the project's own, of lost processes, limits and retries."""
    probed = Probed(tmp_path / "health")
    worker = start_worker(COUNTS + OWN_ERRORS, pool=pool, env={**probed.env, "LEASE": "6"}, wait=False)
    until(lambda: " ready." in worker.log(), within=60, what="the worker to be ready")
    counts = Counts(load_project(COUNTS + OWN_ERRORS), out, probed)

    plan = dict.fromkeys((*EVERYWHERE, "own", "plain_own", "frozen"), 2)
    if pool == "prefork":
        plan |= dict.fromkeys(PROCESSES, 1)
    for name, number in plan.items():
        counts.send(name, number)
    counts.send_expired(2)
    counts.send_revoked(2)
    counts.send_unknown(2)
    counts.send_malformed(2)
    counts.send_replayed(2)
    wait_for(counts, plan, within=180)

    counted = counts.page().outcomes()
    worker.stop()
    told: Counter[Key] = Counter((end.get("task") or "none", end["outcome"]) for end in ends(worker.log()))
    differ = {key: (told[key], counted.get(key, 0)) for key in {*told, *counted} if told[key] != counted.get(key, 0)}
    assert differ == {}, "records, and what the page counts"
    raised = {(end["task"], end["exc_type"]) for end in ends(worker.log()) if end["outcome"] == "failure"}
    assert {
        ("proj.own", "ShopError"),
        ("proj.plain_own", "ShopError"),
        ("proj.frozen", "FrozenError"),
        ("proj.broken", "ValueError"),
    } <= raised
    assert not [name for _, name in raised if "Unpickleable" in name]
    died = {end["exc_type"] for end in ends(worker.log()) if end["outcome"] in ("poison", "worker_lost")}
    assert died == ({"TaskProcessLostError", "WorkerLostError"} if pool == "prefork" else set())


def ends(log: str) -> list[dict[str, Any]]:
    """Records of ends among the lines of a worker."""
    records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [record for record in records if record["logger"] == "celery_hardened.task" and "outcome" in record]
