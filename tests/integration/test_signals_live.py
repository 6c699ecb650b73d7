"""Signals of a worker and of who publishes, in real processes: each once, where the page says that it is sent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.counts import COUNTS, Counts, wait_for
from tests.support.health import Probed
from tests.support.notes import notes
from tests.support.until import until

LISTENING = """
from billiard import current_process

from celery_hardened import deduplicate
from celery_hardened.signals import (
    task_dead_lettered, task_deduplicated, task_replayed, task_waited, worker_process_lost
)


def here():
    return "main" if current_process()._name == "MainProcess" else "child"


@task_dead_lettered.connect
def on_letter(sender, letter, **_):
    assert sender is app
    note("told", "task_dead_lettered", here(), letter.task or "none", letter.reason)


@task_replayed.connect
def on_replay(sender, task, task_id, key, **_):
    note("told", "task_replayed", here(), task)


@task_waited.connect
def on_wait(sender, task, task_id, why, delay, **_):
    note("told", "task_waited", here(), task)


@worker_process_lost.connect
def on_lost(sender, task, task_id, deaths, **_):
    note("told", "worker_process_lost", here(), task, deaths)


@task_deduplicated.connect
def on_refusal(sender, task, task_id, owner, **_):
    if sender is app:  # the producer's process may know the app of another test
        note("told", "task_deduplicated", here(), task, owner)


@app.task(base=Counted)
@deduplicate("order", until="start")
def single(order):
    pass
"""


@pytest.mark.timeout(300)
def test_each_signal_is_sent_once(
    start_worker: StartWorker, load_project: LoadProject, out: Path, tmp_path: Path
) -> None:
    """Letters by who writes them, lost processes by the main process with their number, replays and waits by the
    child, refusals by the publisher; as many as the worker counts."""
    probed = Probed(tmp_path / "health")
    project = load_project(COUNTS + LISTENING)
    owner = project.single.delay("one")
    again = project.single.delay("one")
    assert again.id == owner.id
    start_worker(COUNTS + LISTENING, concurrency=4, env={**probed.env, "LEASE": "10"})
    counts = Counts(project, out, probed)

    plan = {"broken": 2, "hard_limit": 1, "killed": 1, "poisonous": 1}
    for name, number in plan.items():
        counts.send(name, number)
    counts.send_unknown(1)
    counts.send_malformed(1)
    counts.send_replayed(2)
    counts.send_waiting()
    counts.asked["proj.single", "success"] += 1
    wait_for(counts, plan, within=120)

    waited = counts.asked["proj.busy", "waited"]
    expected = Counter(
        {
            f"task_deduplicated main proj.single {owner.id}": 1,
            "task_dead_lettered child proj.broken permanent": 2,
            "task_dead_lettered main proj.hard_limit timeout": 1,
            "task_dead_lettered main proj.poisonous poison": 1,
            "task_dead_lettered main proj.nobody unknown_task": 1,
            "task_dead_lettered main none undecodable": 1,
            "worker_process_lost main proj.killed 1": 1,
            "worker_process_lost main proj.poisonous 1": 1,
            "worker_process_lost main proj.poisonous 2": 1,
            "worker_process_lost main proj.poisonous 3": 1,
            "task_replayed child proj.once": 2,
            "task_replayed child proj.busy": 1,
            "task_waited child proj.busy": waited,
        }
    )
    until(lambda: len(notes(out, "told")) >= expected.total(), within=30, what="all signals")
    assert Counter(notes(out, "told")) == expected
