"""Signals of ours, for code that wants to know: connect to them as to Celery's own.

::

    from celery_hardened.signals import task_dead_lettered

    @task_dead_lettered.connect
    def tell_the_team(sender, letter, **_):
        ...

*sender* is the app. They are sent after what they tell of has happened, in the process where it happened, which for
tasks of the prefork pool is the child; ``docs/reference/signals.md`` says where each is sent, and how often. An
``Exception`` of a receiver is logged and changes nothing; ``SystemExit`` and its like end what they always end.
A receiver is waited for: keep it short. Those of beat's are called in a thread of their own, which nothing waits for.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from celery.utils.dispatch import Signal

logger = logging.getLogger("celery_hardened")


def tell(signal: Signal, app: Any, **what: Any) -> None:
    """Send *signal*, if anybody listens. Raises no ``Exception``.

    On a hot path ask ``signal.receivers`` first: then what is told need not even be put together.
    """
    if not signal.receivers:
        return
    try:
        signal.send(app, **what)
    except Exception:  # of the dispatch itself: what a receiver raises is logged there
        logger.exception("signal %s was not sent to all its receivers", signal.name)


task_dead_lettered: Final = Signal(name="task_dead_lettered", providing_args={"letter"})
"""A dead letter was written. ``letter``: the ``DeadLetter``."""

task_replayed: Final = Signal(name="task_replayed", providing_args={"task", "task_id", "key"})
"""A run was answered with the kept result of an earlier one. Sent in the pool process, before it ends."""

task_waited: Final = Signal(name="task_waited", providing_args={"task", "task_id", "why", "delay"})
"""A message was sent again for later, without an attempt. ``delay`` in seconds."""

task_deduplicated: Final = Signal(name="task_deduplicated", providing_args={"task", "task_id", "owner"})
"""A publish was refused, because ``owner``, the id of another task, has its key."""

lease_lost: Final = Signal(name="lease_lost", providing_args={"task", "task_id", "queue"})
"""A running task's message is another worker's by now. Sent in the worker's main process, from its keeper thread."""

worker_process_lost: Final = Signal(name="worker_process_lost", providing_args={"task", "task_id", "deaths"})
"""A pool process died while it ran this task. Sent in the worker's main process."""

schedule_fired: Final = Signal(name="schedule_fired", providing_args={"schedule", "slot", "task_id", "missed"})
"""A slot was fired. ``slot`` is a timestamp in UTC; ``missed`` earlier slots it stands for. Sent by the leader."""

schedule_missed: Final = Signal(name="schedule_missed", providing_args={"schedule", "slot", "count", "reason"})
"""``count`` slots up to ``slot`` were not fired, for ``reason``. Sent by the leader."""

leader_changed: Final = Signal(name="leader_changed", providing_args={"leads", "term", "why"})
"""This beat leads, or does not lead any more (``leads``)."""
