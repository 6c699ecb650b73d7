"""Publishes that wait for a commit, where tasks run inline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from celery import Celery
from celery.result import EagerResult
from celery.utils import uuid

from celery_hardened.errors import NotSentError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline import on_commit
from celery_hardened.pipeline.transactions import Transaction


class HeldResult(EagerResult):  # type: ignore[misc]
    """Result of a task that runs after a commit."""

    def __init__(self, name: str, task_id: str) -> None:
        super().__init__(task_id, None, "PENDING", name=name)

    def get(self, *args: Any, **options: Any) -> Any:
        """As ``EagerResult.get``. Raises ``NotSentError`` before the commit, and after a rollback."""
        if self.state == "PENDING":
            raise NotSentError(self.name, self.id, False)
        return super().get(*args, **options)

    wait = get

    def ran(self, result: EagerResult) -> None:
        self._state, self._result, self._traceback = result.state, result.result, result.traceback


class _Held:
    """One publish. The transactions hold it, and forget it with a rollback."""

    def __init__(self, run: Callable[[], object], commits: int) -> None:
        self._run = run
        self._left = commits

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._run()


@contextmanager
def commits_awaited(app: Celery, hardening: Hardening) -> Iterator[None]:
    """Hardened tasks of *app* that are published inside a transaction run after its commit, or never."""
    tasks = [task for task in app.tasks.values() if getattr(task, "is_hardened", False)]
    for task in tasks:
        task.__dict__["apply_async"] = _waiting(task, task.apply_async, hardening)
    try:
        yield
    finally:
        for task in tasks:
            del task.__dict__["apply_async"]


def _waiting(task: Any, run: Any, hardening: Hardening) -> Any:
    def apply_async(args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any) -> Any:
        transactions = _transactions(hardening, options.pop("on_commit", None))
        if not transactions:
            with on_commit.tracing():
                return run(args, kwargs, task_id=task_id, **options)
        result = HeldResult(task.name, task_id or uuid())
        given = deepcopy((args, kwargs))  # as it is now, whatever becomes of it until the commit

        def go_on() -> None:
            with on_commit.tracing():
                result.ran(run(*given, task_id=result.id, **options))

        held = _Held(go_on, len(transactions))
        for transaction in transactions:
            transaction.hold(lambda _: held)  # type: ignore[arg-type, return-value]  # called as a hook is
        return result

    return apply_async


def _transactions(hardening: Hardening, given: Any) -> Sequence[Transaction]:
    """As ``on_commit.deferrable``, which finds none in eager mode."""
    if given is False or on_commit.never_waits():
        return ()
    return on_commit.open_transactions(hardening, given)
