"""A worker that recycles its children for long holds no more than one that has just begun."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.counts import COUNTS
from tests.support.health import Probed
from tests.support.notes import notes
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)]

#: Tasks before the first look, and from one to the other: each child runs two, so that 60 are replaced between.
FIRST, MORE = 40, 120

SOURCE = f"""{COUNTS}

@app.task(bind=True, base=Counted)
@idempotent("order")
def lasting(self, order):
    note("pids", os.getpid())
    ends(self, "success")
"""


@pytest.mark.timeout(300)
def test_descriptors_and_threads_of_recycled_children(
    broker: Broker, start_worker: StartWorker, load_project: LoadProject, out: Path, tmp_path: Path
) -> None:
    """Descriptors and threads of the main process, and of a child, are as many after sixty children more; scraped
    meanwhile, with records in Redis and a side channel in use."""
    probed = Probed(tmp_path / "health")
    worker = start_worker(SOURCE, concurrency=2, env={**probed.env, "RECYCLE": "2"})
    project = load_project(SOURCE)
    ran = 0

    def run(number: int) -> None:
        nonlocal ran
        for _ in range(number):
            project.lasting.delay(str(ran))
            ran += 1
        until(lambda: len(notes(out, "pids")) >= ran, within=120, every=0.2, what=f"{ran} tasks to have run")
        probed.metrics()

    def held() -> tuple[int, int, int] | None:
        """Of the worker at rest: descriptors and threads, and descriptors of the child that has most. ``None``: one of
        its children is being replaced."""
        main = psutil.Process(worker.pid)
        with suppress(psutil.Error):  # it has ended since it was seen
            children = [psutil.Process(pid).num_fds() for pid in worker.children()]
            return (main.num_fds(), main.num_threads(), max(children)) if len(children) == 2 else None
        return None

    run(FIRST)
    before = until(held, what="both children to be there")
    assert before is not None
    run(MORE)
    assert len(set(notes(out, "pids"))) >= (FIRST + MORE) / 2 - 2, "children were not recycled"

    def as_before() -> bool:
        found = held()
        # A child may be replaced at this moment, and a scrape be answered: few, and not one for each child.
        return found is not None and all(now <= then + 3 for now, then in zip(found, before, strict=True))

    try:
        until(as_before, within=30, what="the worker to hold what it held before")
    except AssertionError as late:
        raise AssertionError(f"{late}: {before} before, {held()} now") from late
