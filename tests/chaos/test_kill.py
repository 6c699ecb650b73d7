"""SIGKILL at random moments under load: nothing is lost, nothing is blamed that is innocent."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until

pytestmark = pytest.mark.chaos

TASKS = 120
KILLS = 10


def unfinished(project: ModuleType, ids: dict[str, str]) -> set[str]:
    """Orders that have ended neither as success nor as a letter."""
    buried = {stored.letter.task_id for stored in letters(project)}
    client = project.app.backend.client
    keys = [project.app.backend.get_key_for_task(task_id) for task_id in ids.values()]
    done = {order for (order, _), raw in zip(ids.items(), client.mget(keys), strict=True) if raw and b"SUCCESS" in raw}
    return {order for order, task_id in ids.items() if order not in done and task_id not in buried}


def test_killed_children_lose_nothing(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """
    Ten pool children are killed at random moments under load, and one message
    kills its own: that one is poison after three deaths, all others finish.
    """
    worker = start_worker(SHOP, concurrency=3)
    project = load_project(SHOP)
    dice = random.Random(4711)
    ids = {f"o{n}": project.slow.delay(f"o{n}", 0.05 + dice.random() / 10).id for n in range(TASKS)}
    killer = project.killer.delay("killer")

    killed = 0
    for _ in range(10 * KILLS):
        time.sleep(dice.random() / 4)  # the moment is what is random; nothing is waited for
        children = worker.children()
        try:
            psutil.Process(dice.choice(children)).kill()
        except (IndexError, psutil.NoSuchProcess):
            continue  # all are being replaced, or it was just now: the next one will do
        killed += 1
        if killed == KILLS:
            break
    assert killed == KILLS

    until(lambda: not unfinished(project, ids), within=120, what="all orders to end")
    until(lambda: letters(project, reason="poison"), within=60, what="the killer to be poison")
    by_id = {stored.letter.task_id: stored.letter for stored in letters(project)}
    assert by_id.pop(killer.id).reason == "poison"
    assert sum(line.split()[0] == "proj.killer" for line in notes(out, "starts")) == 3
    assert not by_id, "an innocent was buried"
    assert project.fine.delay("after").get(timeout=60) == "after"
    assert worker.running


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_workers_lose_nothing(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """
    Ten whole workers are killed at random moments under load. Every order ends;
    those that ran beside a death are run again and not blamed.

    The limit lies above the kills: an order that ran alone at the fourth would rightly be
    called poison, and these come from outside.
    """
    project = load_project(SHOP)
    dice = random.Random(4712)
    ids = {f"o{n}": project.slow.delay(f"o{n}", 0.1 + dice.random() / 5).id for n in range(2 * TASKS)}

    patient = {"CONF": repr({"hardened_max_worker_deaths": KILLS + 1, "hardened_lease": 3.0})}
    for _ in range(KILLS):
        worker = start_worker(SHOP, concurrency=3, env=patient)
        time.sleep(dice.random() * 1.5)  # as above
        worker.kill_group()
    start_worker(SHOP, concurrency=3, env=patient)

    until(lambda: not unfinished(project, ids), within=180, what="all orders to end")
    assert letters(project) == [], "an innocent was buried"
    ended = {line.split()[1] for line in notes(out, "ends")}
    assert ended == set(ids)
