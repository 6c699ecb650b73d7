"""A store of checkpoints that notes its steps, and a worker that is told to stop when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery

from celery_hardened import HardenedTask, StoreUnavailableError
from celery_hardened.checkpoint.contract import Whose
from celery_hardened.checkpoint.memory import InMemoryCheckpointStore
from celery_hardened.checkpoint.record import Record


class SpiedStore(InMemoryCheckpointStore):
    """Notes each step. ``down`` of the next ones are not answered."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.down = 0

    def _note(self, step: str) -> None:
        if self.down:
            self.down -= 1
            raise StoreUnavailableError("saving a checkpoint", "ConnectionError: no")
        self.steps.append(step)

    def open(self, work: str, **options: Any) -> bytes | None:
        self._note("open")
        return super().open(work, **options)

    def save(self, work: str, *, state: bytes, **options: Any) -> Whose:
        record = Record.read(state)
        self._note(f"save {record.loops.get('rows', record.value(None))}")
        return super().save(work, state=state, **options)

    def finish(self, work: str, **options: Any) -> Whose:
        self._note("finish")
        return super().finish(work, **options)


class Stop:
    """Whether the worker of this process stops, as far as its loops can see."""

    def __init__(self) -> None:
        self.told = False

    def __call__(self) -> None:
        self.told = True

    def over(self) -> None:
        """The next start is another worker's."""
        self.told = False


def make(app: Celery, run: Callable[..., Any], **options: Any) -> Any:
    run.__name__ = "run"  # Celery makes a signature of the name
    return app.task(bind=True, base=HardenedTask, shared=False, name="job", **options)(run)
