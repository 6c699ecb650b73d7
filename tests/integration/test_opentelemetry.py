"""Spans with real workers and beats: none is lost, and what belongs together is linked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from celery_hardened import Hardening, Query
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import LoadProject, StartProcess, StartWorker
from tests.support.letters import letter_of
from tests.support.until import until

APP = (Path(__file__).parents[1] / "support" / "traced_app.py").read_text()


def spans(out: Path, name: str) -> list[dict[str, Any]]:
    """The finished spans of that name so far, in the order in which they began."""
    path = out / "spans"
    # Whole ones: the last may be being written.
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    found = [span for span in map(json.loads, lines) if span["name"] == name]
    return sorted(found, key=lambda span: str(span["start_time"]))


def wait_for(out: Path, name: str, count: int) -> list[dict[str, Any]]:
    until(lambda: len(spans(out, name)) >= count, within=60, what=f"{count} spans {name}")
    return spans(out, name)


def trace_of(span: dict[str, Any]) -> str:
    return str(span["context"]["trace_id"])


def links(span: dict[str, Any]) -> list[tuple[str, str]]:
    """What *span* links to: kind and span id."""
    return [(link["attributes"]["celery_hardened.link"], link["context"]["span_id"]) for link in span["links"]]


#: The test's own side has no spans: what is connected for them stays for the whole process.
UNTRACED = {"UNTRACED": "1"}


def run(start_process: StartProcess, code: str) -> None:
    """Run *code* in a process of its own with the app as ``proj``; its spans are sent at its end."""
    process = start_process(APP, "python", "-c", f"import os; os.environ.pop('UNTRACED', 0)\nimport proj\n{code}")
    assert process.wait(within=60) == 0, process.log()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_no_span_is_lost_when_processes_are_recycled(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """Ten tasks in processes that run one each: ten spans, each exported by the process it was made in."""
    start_worker(APP, args=["--max-tasks-per-child", "1"])
    project = load_project(APP, UNTRACED)
    for result in [project.fine.delay() for _ in range(10)]:
        assert result.get(timeout=60) == "fine"
    found = wait_for(out, "run/proj.fine", 10)
    assert len(found) == 10
    assert len({span["pid"] for span in found}) == 10
    assert all(span["pid"] == span["made_in"] for span in found)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_worker_that_stops_sends_its_last_spans(
    pool: str, start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    worker = start_worker(APP, pool=pool)
    project = load_project(APP, UNTRACED)
    assert project.fine.delay().get(timeout=60) == "fine"
    assert project.contained.delay().get(timeout=60) == "contained"
    worker.stop()
    assert len(spans(out, "run/proj.fine")) == 1
    assert len(spans(out, "run/proj.contained")) == 1


def test_retries_and_redrives_are_one_trace_and_linked(
    start_worker: StartWorker, start_process: StartProcess, load_project: LoadProject, out: Path
) -> None:
    """Each retry links to the first attempt, a redriven run to the run its letter tells of; all in one trace."""
    worker = start_worker(APP)
    project = load_project(APP, UNTRACED)
    run(start_process, "proj.flaky.apply_async(task_id='f'), proj.broken.apply_async(task_id='b')")
    assert project.flaky.AsyncResult("f").get(timeout=60) == "at last"
    letter = letter_of(project, "b")
    (out / "mended").touch()
    Hardening.expect(project.app).redrive(Query(ids=(letter.letter.id,)), by="ann", why="mended")
    until(lambda: project.broken.AsyncResult("b").state == "SUCCESS", within=60, what="the redriven run")
    worker.stop()

    first, second, third = spans(out, "run/proj.flaky")
    assert links(first) == []
    assert links(second) == links(third) == [("first_attempt", first["context"]["span_id"])]
    assert {trace_of(span) for span in (first, second, third)} == {trace_of(first)}
    sent = spans(out, "apply_async/proj.flaky")
    assert first["parent_id"] == sent[0]["context"]["span_id"]

    failure, again = spans(out, "run/proj.broken")
    assert links(failure) == []
    assert links(again) == [("dead_letter", failure["context"]["span_id"])]
    assert trace_of(again) == trace_of(failure)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_large_arguments_keep_their_trace(start_worker: StartWorker, start_process: StartProcess, out: Path) -> None:
    """The arguments lie in the payload store; the trace context is in the message."""
    worker = start_worker(APP)
    run(start_process, "assert proj.fine.delay('x' * 200_000).get(timeout=60) == 'fine'")
    worker.stop()
    (sent,), (ran,) = spans(out, "apply_async/proj.fine"), spans(out, "run/proj.fine")
    assert ran["parent_id"] == sent["context"]["span_id"]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_what_beat_fires_is_a_trace_of_its_own(start_worker: StartWorker, start_beat: StartBeat, out: Path) -> None:
    """Each fire is the root of a trace, and its run the child of it: nothing of one fire is left for the next."""
    env = {"SCHEDULES": "{'often': {'task': 'proj.fine', 'schedule': 0.5}}"}
    worker = start_worker(APP, env=env)
    beat = start_beat(APP, env=env)
    until(lambda: worker.log().count("success") >= 4, within=60, what="four runs")
    beat.stop()
    worker.stop()
    runs, sent = spans(out, "run/proj.fine"), spans(out, "apply_async/proj.fine")
    assert len(runs) >= 4
    assert len({trace_of(span) for span in sent}) == len(sent)
    assert {run["parent_id"] for run in runs} <= {span["context"]["span_id"] for span in sent}


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_publish_that_fails_leaves_no_span_behind(start_process: StartProcess, out: Path) -> None:
    """Nor does one of a task that only its name is known of: the next publish is a trace of its own."""
    run(
        start_process,
        """
from opentelemetry.trace import get_current_span
try:
    proj.contained.apply_async(connection=proj.app.connection_for_write("redis://127.0.0.1:1/0"), retry=False)
except Exception as error:
    print(type(error))
else:
    raise AssertionError("it was sent")
assert not get_current_span().get_span_context().is_valid
proj.app.send_task("elsewhere.task")
assert not get_current_span().get_span_context().is_valid
proj.fine.delay()
""",
    )
    sent = [*spans(out, "apply_async/elsewhere.task"), *spans(out, "apply_async/proj.fine")]
    assert [span["parent_id"] for span in sent] == [None, None]
    (failed,) = spans(out, "apply_async/proj.contained")
    assert failed["status"]["status_code"] == "ERROR"
