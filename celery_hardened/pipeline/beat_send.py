"""Celery's own publish path, as a beat takes it: nobody's child, and after nobody's commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery, _state
from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs
from celery.result import denied_join_result
from kombu.exceptions import SerializationError

from celery_hardened.beat.cause import cause
from celery_hardened.beat.schedule import Schedule
from celery_hardened.errors import ConfigurationError
from celery_hardened.pipeline.on_commit import immediately
from celery_hardened.pipeline.publish import FireMarks, firing

#: What beat says of its messages, as Celery's own does.
BEAT_HEADER = "celery_beat_task"

#: Options that beat gives itself.
_NOT_TO_SAY = ("connection", "producer", "publisher", "task_id")


def send(app: Celery, schedule: Schedule, *, task_id: str, fire: FireMarks, producer: Any, **more: Any) -> Any:
    """Publish *schedule*'s task under *task_id* with *producer*; the result, as ``apply_async`` gives it.

    Args:
        more: Options besides the schedule's own.

    Raises:
        ConfigurationError: See ``options_of``.
    """
    options = {**options_of(schedule), **more, "task_id": task_id, "producer": producer}
    args, kwargs = _evaluate_entry_args(schedule.args), _evaluate_entry_kwargs(schedule.kwargs)
    task: Any = app.tasks.get(schedule.task)
    with _marked(task_id, fire), immediately(), _no_current_task(), _nobody_waits():
        if task is None:
            return app.send_task(schedule.task, args, kwargs, **options)
        return task.apply_async(args, kwargs, **options)


def options_of(schedule: Schedule) -> dict[str, Any]:
    """The options of ``apply_async`` that *schedule* says, with beat's header. Its task id is its slot's.

    Raises:
        ConfigurationError: It names a connection, whose messages nobody would claim.
    """
    if schedule.options.get("connection") is not None:
        raise ConfigurationError(
            f"schedule {schedule.name!r} has the option 'connection': beat sends all its messages over its own one. "
            f"Take the option out; to publish to another broker, let the task do it."
        )
    options = {name: value for name, value in schedule.options.items() if name not in _NOT_TO_SAY}
    headers: Mapping[str, Any] = options.get("headers") or {}
    return {**options, "headers": {**headers, BEAT_HEADER: True}}


def cause_of(problem: Exception) -> str:
    """Why a publish failed, for people. No argument: some serializers quote what they cannot write."""
    wrapped = problem.args[0] if isinstance(problem, SerializationError) and problem.args else None
    # Of Python's own type errors, JSON's among them, it is known that they name types alone.
    if isinstance(wrapped, Exception) and not isinstance(wrapped, TypeError):
        return f"{type(problem).__name__}: the serializer raised {type(wrapped).__name__}"
    return cause(problem)


@contextmanager
def _marked(task_id: str, fire: FireMarks) -> Iterator[None]:
    token = firing.set((task_id, fire))
    try:
        yield
    finally:
        firing.reset(token)


@contextmanager
def _no_current_task() -> Iterator[None]:
    """No task that happens to run in this thread is the parent of what a schedule fires."""
    running = []
    while _state._task_stack.top is not None:
        running.append(_state._task_stack.pop())
    try:
        yield
    finally:
        for task in reversed(running):
            _state._task_stack.push(task)


@contextmanager
def _nobody_waits() -> Iterator[None]:
    """Nobody here waits for results. A Redis backend would subscribe to each, on a connection that nobody reads, and
    remember it for ever.

    That can be said of a whole process only, so not in a thread of a program that embeds beat.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with denied_join_result():
        yield
