"""Retries with errors that no process can hand to another: public reports of workers that died of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letter_of
from tests.support.notes import notes

SOURCE = '''
import os
import threading

from celery import Celery, Task

from celery_hardened import HardenedTask, harden
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_retry_backoff=0.1,
    hardened_retry_floor=0.05,
)
harden(app)


class TwoArgumentsError(Exception):
    """Pickle builds it anew with one argument, and fails."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class LockedError(Exception):
    """Holds what cannot be pickled."""

    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


ERRORS = {"two": lambda: TwoArgumentsError(1, 2), "locked": LockedError}


@app.task(bind=True, base=HardenedTask, max_retries=2)
def explicit(self, error):
    note("starts", "explicit", error, self.request.retries)
    raise self.retry(exc=ERRORS[error](), countdown=0.1)


@app.task(bind=True, base=HardenedTask, max_retries=2, autoretry_for=(TwoArgumentsError, LockedError))
def automatic(self, error):
    note("starts", "automatic", error, self.request.retries)
    raise ERRORS[error]()


@app.task(bind=True, base=Task, max_retries=2)
def contained(self, error):
    note("starts", "contained", error, self.request.retries)
    raise self.retry(exc=ERRORS[error](), countdown=0.1)


@app.task
def fine():
    return "fine"
'''


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_errors_that_cannot_be_pickled_are_retried_like_others(
    start_worker: StartWorker, load_project: LoadProject, out: Path, subtests: pytest.Subtests
) -> None:
    """Explicit, automatic and contained: three starts, one letter with the error's own words, and the worker lives."""
    worker = start_worker(SOURCE, concurrency=1)
    project = load_project(SOURCE)
    words = {"two": "1 and 2", "locked": "locked"}
    sent = {
        (kind, error): getattr(project, kind).delay(error)
        for kind in ("explicit", "automatic", "contained")
        for error in words
    }
    for (kind, error), result in sent.items():
        with subtests.test(f"{kind} {error}"):
            letter = letter_of(project, result.id, within=90).letter
            assert (letter.reason, letter.attempt) == ("exhausted", 2)
            assert words[error] in letter.error_message
            starts = [line for line in notes(out, "starts") if line.startswith(f"{kind} {error} ")]
            assert [line.split()[-1] for line in starts] == ["0", "1", "2"]
    assert project.fine.delay().get(timeout=60) == "fine"
    assert worker.running
