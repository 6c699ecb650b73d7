"""What a worker holds from its start on is left out of Python's garbage collection: ``gc.freeze()``.

A full collection (generation 2) stops the whole process for as long as it looks at everything that the process holds:
code, tasks, tracers, settings, none of which is garbage before the end. Frozen, they are looked at no more.

::

    before the pool forks    collect, freeze: children have it frozen too, and the memory stays shared
    ready                    collect, freeze: the consumer and its strategies
    a child begins           freeze: its tracers. Nothing to collect that was not collected before the fork

Celery collects fully itself before each child that it forks, so a worker that recycles has such a stop for each child.
"""

from __future__ import annotations

import gc
import os
from typing import Any, Final

from celery import signals
from celery.apps.worker import Worker

from celery_hardened.settings import Settings

#: Objects that may be frozen without anybody having asked for it: Python 3.12 begins with 375.
BORN_FROZEN: Final = 1000


def freeze_worker(settings: Settings, worker: Any) -> bool:
    """Freeze what *worker* holds, now and when it is ready. To be called when all tasks are known, before it forks.

    Nothing is done in observe mode; without ``hardened_gc_freeze``; for a worker inside another program, such as
    ``celery.contrib.testing``'s, whose objects are not the worker's; and where the project sees to the collector
    itself, by ``gc.disable()`` or by ``gc.freeze()``.

    Returns:
        Is it frozen?
    """
    if not settings.gc_freeze or settings.observe or not isinstance(worker, Worker):
        return False
    if not _left_to_us() or gc.get_freeze_count() > BORN_FROZEN:
        return False
    _freeze()
    parent = os.getpid()

    def on_ready(sender: Any = None, **_: Any) -> None:
        if getattr(sender, "controller", None) is worker and _left_to_us():
            _freeze()

    def on_child(**_: Any) -> None:
        if os.getpid() != parent and _left_to_us():  # the solo pool sends it too, in the worker
            gc.freeze()

    signals.worker_ready.connect(on_ready, weak=False)
    signals.worker_process_init.connect(on_child, weak=False)
    return True


def _freeze() -> None:
    gc.collect()  # what is garbage now would be kept for ever
    gc.freeze()


def _left_to_us() -> bool:
    """Does the collector run by itself, and can it freeze? PyPy's cannot."""
    return gc.isenabled() and hasattr(gc, "freeze")
