"""Every way a task can end, on both brokers: what becomes of it, exactly once."""

from __future__ import annotations

from pathlib import Path

import celery
import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letter_of, letters
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until


def starts(out: Path, task: str, order: str) -> int:
    return sum(1 for line in notes(out, "starts") if line.split()[:2] == [f"proj.{task}", order])


def signals(out: Path, task_id: str) -> list[str]:
    return [line.split()[0] for line in notes(out, "signals") if line.endswith(task_id)]


#: task, reason, starts, error class as the letter shows it
FAILURES = [
    ("broken", "permanent", 1, "ValueError"),
    ("unpicklable", "permanent", 1, "proj.UnpicklableError"),
    ("rebuilt_elsewhere", "permanent", 1, "proj.RebuiltElsewhereError"),
    ("down_elsewhere", "exhausted", 4, "proj.DownElsewhereError"),
    ("mute", "permanent", 1, "proj.MuteError"),
    ("base_exception", "permanent", 1, "celery_hardened.errors.TaskExitError"),
    ("unencodable", "permanent", 1, "kombu.exceptions.EncodeError"),
    ("soft_limit", "timeout", 1, "billiard.exceptions.SoftTimeLimitExceeded"),
    ("hard_limit", "timeout", 1, "billiard.exceptions.TimeLimitExceeded"),
    ("listed_limit", "timeout", 2, "billiard.exceptions.TimeLimitExceeded"),
    ("rejecting", "rejected", 1, "celery.exceptions.Reject"),
    ("exiting", "permanent", 1, "celery_hardened.errors.TaskExitError"),
    ("out_of_memory", "permanent", 1, "celery_hardened.errors.TaskMemoryError"),
    ("killer", "poison", 3, "celery_hardened.errors.TaskProcessLostError"),
    ("explicit", "exhausted", 3, "ValueError"),
    ("plain_broken", "permanent", 1, "ValueError"),
    ("plain_retrying", "exhausted", 2, "ConnectionError"),
    ("plain_killer", "lost", 1, "billiard.exceptions.WorkerLostError"),
    ("plain_late_killer", "poison", 3, "celery_hardened.errors.TaskProcessLostError"),
    ("plain_out_of_memory", "permanent", 1, "celery_hardened.errors.TaskMemoryError"),
    ("plain_exiting", "permanent", 1, "celery_hardened.errors.TaskExitError"),
    ("plain_hard_limit", "timeout", 1, "billiard.exceptions.TimeLimitExceeded"),
]

#: Before Celery 5.7 a Reject is neither stored as FAILURE nor signalled. The letter is the same.
UNTOLD = {"rejecting"} if celery.VERSION[:2] < (5, 7) else set()


def test_each_way_to_fail_is_one_letter(
    start_worker: StartWorker, load_project: LoadProject, out: Path, subtests: pytest.Subtests
) -> None:
    """
    Each row: exactly one letter with its reason, the result says FAILURE, one
    task_failure signal, the body started as often as it should; and the worker
    that met them all still works.
    """
    worker = start_worker(SHOP, concurrency=2)
    project = load_project(SHOP)
    sent = {name: getattr(project, name).delay(name) for name, *_ in FAILURES}

    for name, reason, expected_starts, error in FAILURES:
        with subtests.test(name):
            stored = letter_of(project, sent[name].id, within=90)
            assert (stored.letter.reason, stored.letter.error_type) == (reason, error)
            assert stored.letter.queue == project.app.conf.task_default_queue
            result = sent[name]
            assert starts(out, name, name) == expected_starts
            if name in UNTOLD:
                continue
            until(lambda result=result: result.state == "FAILURE", what=f"the result of {name} to say FAILURE")
            until(
                lambda result=result: signals(out, result.id).count("failure") == 1, what=f"one task_failure of {name}"
            )

    assert project.fine.delay("after").get(timeout=60) == "after"
    assert worker.running, "the worker went down"
    for name, *_ in FAILURES:
        with subtests.test(f"{name} stays one"):
            assert signals(out, sent[name].id).count("failure") == (0 if name in UNTOLD else 1)
            assert len([s for s in letters(project) if s.letter.task_id == sent[name].id]) == 1


def test_what_is_no_failure_leaves_no_letter(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """Success, retry then success, Ignore, a quiet retry, a context-pushing base class, revoke: no letter."""
    start_worker(SHOP)
    project = load_project(SHOP)

    flaky = project.flaky.delay("f")
    context = project.in_context.delay("c")
    quiet = project.quiet_retry.delay("q")
    hook = project.bad_hook.delay("h")
    project.ignoring.delay("i")
    doomed = project.slow.delay("revoked", 60)
    until(lambda: starts(out, "slow", "revoked") == 1, what="the task to revoke to start")
    doomed.revoke(terminate=True)

    assert flaky.get(timeout=60) == "f"
    assert context.get(timeout=60) == "c"
    assert quiet.get(timeout=60) == "q"
    until(lambda: project.app.AsyncResult(hook.id).state == "SUCCESS", what="the task with a bad hook to succeed")
    assert starts(out, "bad_hook", "h") == 3
    until(lambda: doomed.state == "REVOKED", what="the revoke to be recorded")
    until(lambda: starts(out, "ignoring", "i") == 1, what="the ignoring task to start")
    # The signal of a success comes after its result is stored, and so after get() returns.
    for result, expected in (
        (flaky, ["retry", "retry", "success"]),
        (context, ["retry", "success"]),
        (quiet, ["retry", "success"]),
    ):
        until(lambda e=expected, r=result: signals(out, r.id) == e, what=f"the signals {expected}")
    assert notes(out, "contexts") == ["pushed", "pushed"]
    assert letters(project) == []


def test_memory_error_outside_of_the_body_spares_the_worker(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """Celery raises a MemoryError from a hook again in the worker's main process; here it is a letter."""
    worker = start_worker(SHOP)
    project = load_project(SHOP)
    hungry = project.hungry_hook.delay("h")

    stored = letter_of(project, hungry.id)
    assert stored.letter.error_type == "celery_hardened.errors.TaskMemoryError"
    assert project.fine.delay("after").get(timeout=60) == "after"
    assert worker.running
    assert starts(out, "hungry_hook", "h") == 1


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_retry_is_said_before_the_next_attempt_can_end(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    Celery stores RETRY after the retry is sent; with a slow backend it overwrites
    the SUCCESS or FAILURE of a quick next attempt, and its caller waits for ever.
    """
    slow = {"SLOW_RETRY_STATE": "1", "CONF": "{'hardened_retry_backoff': 0.06, 'hardened_retry_backoff_max': 0.06}"}
    start_worker(SHOP, concurrency=4, env=slow)
    project = load_project(SHOP)
    good, bad = project.flaky.delay("good"), project.flaky.delay("bad", 99)

    letter_of(project, bad.id)
    # Two retries of the one and three of the other: when all are written, what stands stays.
    until(lambda: len(notes(out, "retry_states")) == 5, what="every RETRY to be written")
    until(lambda: project.app.AsyncResult(good.id).state == "SUCCESS", what="SUCCESS to stay")
    until(lambda: project.app.AsyncResult(bad.id).state == "FAILURE", what="FAILURE to stay")
