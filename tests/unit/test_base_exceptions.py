"""Exceptions that are no Exception: which of them end a task, and which the process."""

from __future__ import annotations

import sys

import pytest
from celery import Celery

from celery_hardened import HardenedTask, Hardening, Query
from tests.support.in_process import InProcessWorker


class OwnError(BaseException):
    """A task's own."""


def ends_its_task(app: Celery, error: BaseException) -> None:
    @app.task(base=HardenedTask, name="odd")
    def odd() -> None:
        raise error

    with InProcessWorker(app) as worker:
        odd.delay()
        worker.run()
        assert worker.unacked == 0
    page = Hardening.expect(app).dead_letters.find(Query())
    assert [stored.letter.error_type for stored in page.letters] == ["celery_hardened.errors.TaskExitError"]


@pytest.mark.parametrize("error", [OwnError("x"), GeneratorExit("x"), SystemExit(3)], ids=repr)
def test_what_no_signal_and_no_pool_raises_is_the_tasks_failure(app: Celery, error: BaseException) -> None:
    """It is a letter and the worker goes on; in the solo pool it would go through the worker's main loop."""
    ends_its_task(app, error)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no such groups")
def test_a_group_of_them_is_one_too(app: Celery) -> None:
    """Even one that holds an interrupt: a real one is never in a group."""
    ends_its_task(app, BaseExceptionGroup("g", [KeyboardInterrupt()]))  # noqa: F821
