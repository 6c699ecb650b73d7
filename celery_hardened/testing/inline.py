"""Tasks run where they are published, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from celery import Celery

from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.hardening import Hardening
from celery_hardened.testing.commit import commits_awaited

#: What ``inline`` sets for a while.
_EAGER = ("task_always_eager", "task_eager_propagates")


class Inline:
    """What ``inline`` gives."""

    def __init__(self, hardening: Hardening) -> None:
        self.hardening = hardening
        """That of the app, with stores of its own."""

    @property
    def dead_letters(self) -> InMemoryDeadLetterStore:
        """The letters that were written inside."""
        return self.hardening.eager_dead_letters


@contextmanager
def inline(app: Celery, *, propagate: bool = True, await_commits: bool = False) -> Iterator[Inline]:
    """Inside, every publish of *app* runs the task at once, in this thread, with all its attempts.

    Arguments pass the serializer, as in a message. Every store (dead letters, claims, windows, checkpoints,
    payloads, deaths, switches) is an empty one in memory, and what was there before is there afterwards.

    Args:
        propagate: The call raises what the task raised in the end. Otherwise its result says FAILURE.
        await_commits: What is published inside a transaction runs after its commit, and never after a
            rollback. ``captureOnCommitCallbacks`` sees it. Otherwise it runs at once too. Tasks that are
            defined inside the block do not wait.

    Raises:
        ConfigurationError: *app* was not hardened.
    """
    hardening = Hardening.expect(app)
    settings = replace(
        hardening.settings,
        dead_letter_store="memory",
        redis_url=None,
        payload_store=hardening.settings.payload_store and "memory:",
    )
    known = dict(hardening.__dict__)
    said = app.conf.changes
    before = {name: said[name] for name in _EAGER if name in said}
    hardening.__dict__.clear()
    hardening.__init__(app, tasks=known["tasks"])  # type: ignore[misc]  # as new: no store, no client, no thread
    hardening.__dict__.update(preset=known["preset"], settings=settings)
    app.conf.update(task_always_eager=True, task_eager_propagates=propagate)
    try:
        with _by_name(app), commits_awaited(app, hardening) if await_commits else nullcontext():
            yield Inline(hardening)
    finally:
        for name in _EAGER:
            said.pop(name, None)
        said.update(before)
        hardening.__dict__.clear()
        hardening.__dict__.update(known)


@contextmanager
def _by_name(app: Celery) -> Iterator[None]:
    """``send_task`` runs the task too; Celery's own sends a message even in eager mode."""

    def send_task(name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return app.tasks[name].apply_async(args, kwargs, **options)

    own = app.__dict__.get("send_task")
    app.__dict__["send_task"] = send_task
    try:
        yield
    finally:
        if own is None:
            del app.__dict__["send_task"]
        else:
            app.__dict__["send_task"] = own
