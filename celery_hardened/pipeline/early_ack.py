"""Windows of a task that acks early are on a lease before its message is gone.

::

    accepted    the pool has taken it         its process fetches, claims, imports
    leased      by the worker's parent        one step for each window; other tasks pay nothing
    acked       by the parent                 from here on no broker knows of it
    started     by the process                its own lease, which it renews

Killed between the last two, a worker leaves nobody behind who could free them: their lease runs out.

The process does not wait for its parent. It may have begun and ended by now, and published a retry whose window
must not be shortened: so the store leases only what no run of this message has spoken of (``WindowStore.lease``).

It may also be slow. Until it has spoken, or the request is over, the parent leases again, so that a window does
not run out under a task that lives.

A worker that is killed between the lease and the ack, which Celery sends with the next turn of its loop, has its
message delivered again. If its window has run out by then it is taken again at the start; if another task has it,
both run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from celery.worker import state

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import Marks, has_window
from celery_hardened.pipeline.windows import renewal, told_by, ttl_of_run, windows

if TYPE_CHECKING:
    from celery.worker.request import Request as _Request
else:
    _Request = object  # a mix-in: the class it is composed with is the task's own

logger = logging.getLogger("celery_hardened.dedup")


class EarlyAck(_Request):  # type: ignore[misc]
    """Mix-in for ``celery.worker.request.Request``."""

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        if self.task.acks_late or not has_window(self._message.headers):
            return super().on_accepted(pid, time_accepted)
        hardening = Hardening.expect(self._app)
        leases = [] if hardening.settings.observe else _leases(hardening, self)
        super().on_accepted(pid, time_accepted)  # acks
        for key, again in leases:  # it is among the active ones from here on
            renewal(hardening).keep(key, str(self.id), most=ttl_of_run(hardening, self.task), by=again)
        return None


def _leases(hardening: Hardening, request: EarlyAck) -> list[tuple[str, Callable[[], bool]]]:
    """Put the windows of *request* on a lease. Which are to be leased again, and how. Never raises.

    Without an answer of the store it is acked all the same: its process has begun, and a message that is not acked
    would be run a second time, which is what an early ack is there to prevent. The window is leased when the store
    answers again, and not freed: its task runs.
    """
    marks, task_id = Marks.read(request._message.headers), str(request.id)
    found = []
    for key, _ in marks.windows:
        lease = _lease(hardening, key, task_id, told_by(marks))
        try:
            # An outage holds up the worker once, and not again for every message.
            if renewal(hardening).away or lease():
                found.append((key, _while_active(request, lease)))
        except StoreUnavailableError as problem:
            logger.warning("%s[%s] is acked before its deduplication key is leased: %s", request.name, task_id, problem)
            renewal(hardening).missed(problem)
            found.append((key, _while_active(request, lease)))
        except Exception:
            logger.exception("deduplication key %r of %s is not leased", key, task_id)
    return found


def _lease(hardening: Hardening, key: str, task_id: str, published: float) -> Callable[[], bool]:
    def lease() -> bool:
        return windows(hardening).lease(key, task_id=task_id, lease=hardening.settings.lease, published=published)

    return lease


def _while_active(request: EarlyAck, lease: Callable[[], bool]) -> Callable[[], bool]:
    """*lease*, as long as the worker works on *request*."""
    known = ref(request)
    return lambda: known() in state.active_requests and lease()
