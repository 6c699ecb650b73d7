"""Every delivery that this worker took is counted once, with how it ended, in the worker's main process.

::

    accepted     how long it waited
    on_success   success, or replayed: the pool process has noted that before it sent the result
    on_failure   by the exception (``ending.py``), and by what the pipeline then did with the message
    on_timeout   timeout, or retry
    revoked      before it began, or while it ran; expired; superseded

The mix-in stands before ``HardenedRequest`` and looks on. It changes nothing, and what goes wrong in it is logged.

Not counted is what goes back without an end: what a cold shutdown cuts short, what a worker that stops has not begun,
what Celery forgets when it loses its connection. It is counted where it ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from billiard.exceptions import TimeLimitExceeded
from celery.worker import state

from celery_hardened.errors import TaskProcessLostError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import deaths_in, published_in
from celery_hardened.metrics.catalogue import (
    CHILDREN_LOST,
    CLOCK_SKEW,
    TASK_EXCEPTIONS,
    TASK_SECONDS,
    TASK_WAIT_SECONDS,
    TASKS,
)
from celery_hardened.metrics.metrics import Metrics
from celery_hardened.metrics.outcome import Outcome
from celery_hardened.pipeline import run_reports, task_log
from celery_hardened.pipeline.ending import outcome_of, raised, unwrap
from celery_hardened.pipeline.letters import OWNER
from celery_hardened.pipeline.request import ON_TIMEOUT_FAILS, compose_request
from celery_hardened.signals import tell, worker_process_lost

if TYPE_CHECKING:
    from celery_hardened.pipeline.request import HardenedRequest as _Request
else:
    _Request = object  # a mix-in: it is composed with a HardenedRequest, or for Celery's own tasks with theirs

logger = logging.getLogger("celery_hardened.metrics")

#: Outcomes of which no body has begun, though the pool had them.
_NOT_BEGUN: Final[frozenset[Outcome]] = frozenset({"replayed", "waited", "deduplicated", "superseded", "lease_lost"})

#: Ends without an error that the pool process has logged.
_TOLD: Final[frozenset[Outcome]] = frozenset({"success", "replayed", "superseded"})

#: A letter that could not be written puts its message back. That changes nothing about these.
_LOST: Final[frozenset[Outcome]] = frozenset({"worker_lost", "lease_lost"})


def compose_counted(base: type, *, hardened: bool = True) -> type:
    """*base* with our mix-ins before it; *base* itself if it has them. *hardened*: not for Celery's own tasks."""
    if issubclass(base, CountedRequest):
        return base
    if hardened:
        base = compose_request(base)
    return type(base.__name__, (CountedRequest, base), {"__module__": base.__module__})


def count_end(request: Any, outcome: Outcome) -> None:
    """*request* ends here, without having been handed to the pool."""
    if isinstance(request, CountedRequest):
        request._count(outcome)


class CountedRequest(_Request):
    """Mix-in for ``celery.worker.request.Request``."""

    _counted = False
    """It is counted once, however often its end is told: hard limits and revokes are told twice."""

    _put_back = False
    """Its message went back to its queue as it was."""

    _metrics: Metrics | None = None

    _again: bool | None = None
    """Was it published again? ``None``: nobody tried."""

    _deaths: int | None = None
    _child_lost = False

    ended_well = False
    """Its process was lost when its result was stored already."""

    def __init_subclass__(cls, **options: Any) -> None:
        """For each task Celery makes a class below this one (``create_request_cls``) whose ``on_success`` calls no
        other."""
        super().__init_subclass__(**options)
        own = cls.__dict__.get("on_success")
        if own is not None:
            cls.on_success = _counting(own)

    # --- where it ends --------------------------------------------------------------------------------------

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        result = super().on_accepted(pid, time_accepted)
        try:
            self._count_wait()
        except Exception:
            logger.exception("the wait of %s is not counted", self.id)
        return result

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = unwrap(exc_info.exception)
        # What a pool process has reported is an end, also while the worker is shut down the hard way.
        cold = bool(state.should_terminate) and not return_ok
        ours = self._already_cancelled or self._already_revoked  # we have ended it ourselves
        outcome = outcome_of(error, acked=bool(self.acknowledged))
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            if not cold and not (ours and outcome in ("terminated", "worker_lost")):
                self._count_failure(outcome, error)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft and not state.should_terminate:
                self._count("requeue" if self._put_back else "timeout", error=TimeLimitExceeded(timeout))

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        result = super()._announce_revoked(reason, terminated, signum, expired)
        if reason == "superseded":
            self._count("superseded")
        else:
            self._count("expired" if expired else "terminated" if terminated else "revoked")
        return result

    def cancel(self, *args: Any, **options: Any) -> Any:
        result = super().cancel(*args, **options)
        if self._already_cancelled and not state.should_terminate:
            self._count("requeue")  # its connection is lost, and its message will come to another worker
        return result

    # --- what HardenedRequest does with it -----------------------------------------------------------------------

    def reject(self, requeue: bool = False) -> Any:
        if requeue and not self.acknowledged:
            self._put_back = True
        return super().reject(requeue)

    def bury_poison(self, deaths: int, last: str, send_failed_event: bool = True) -> Any:
        self._deaths = deaths
        try:
            return super().bury_poison(deaths, last, send_failed_event)
        finally:
            if not self._put_back:
                limit = self._hardening.settings.max_worker_deaths
                self._count("poison", error=TaskProcessLostError(self._type, deaths, limit, last))
            elif self.time_start is None:  # else it is its process that was lost just now
                self._count("requeue")

    def come_back(self, deaths: int) -> None:
        super().come_back(deaths)
        self._count("waited" if self._again else "requeue")

    def _start_again(self, deaths: int, delay: float) -> bool:
        self._deaths = deaths
        self._again = super()._start_again(deaths, delay)
        return self._again

    def _retry_timeout(self, error: BaseException) -> bool:
        retried = super()._retry_timeout(error)
        if retried:
            self._count("retry", error=error)
        return retried

    # --- counting ---------------------------------------------------------------------------------------------

    def _count_failure(self, outcome: Outcome, error: BaseException) -> None:
        if outcome == "worker_lost":
            self._count_lost_child()
            if self.ended_well:
                return self._count("success")
        elif isinstance(error, TimeLimitExceeded) and ON_TIMEOUT_FAILS and not self._put_back:
            return None  # on_timeout comes next, and decides
        elif outcome == "superseded" and self._again is not None:
            outcome = "waited" if self._again else "requeue"  # it could not be recorded
        if self._put_back and outcome not in _LOST:
            outcome = "requeue"
        return self._count(outcome, error=error, begun=not isinstance(error, TaskProcessLostError))

    def _count_lost_child(self) -> None:
        if self._child_lost:
            return
        self._child_lost = True
        try:
            Hardening.expect(self._app).metrics.inc(CHILDREN_LOST)
            if worker_process_lost.receivers:
                known = self._deaths if self._deaths is not None else deaths_in(self._message.headers) + 1
                tell(worker_process_lost, self._app, task=self._type, task_id=str(self.id), deaths=known)
        except Exception:
            logger.exception("a lost process is not counted")

    def _count(
        self,
        outcome: Outcome,
        runtime: float | None = None,
        *,
        error: BaseException | None = None,
        begun: bool = True,
    ) -> None:
        """Count this delivery as *outcome*, unless it is counted. Never raises."""
        if self._counted:
            return
        self._counted = True
        try:
            name, metrics = self._type, self._metrics or self._find_metrics()
            metrics.inc(TASKS, (name, self._queue, outcome))
            if runtime is None and self.time_start is not None and begun:
                runtime = max(0.0, time.time() - self.time_start)
            if runtime is not None and outcome not in _NOT_BEGUN:
                metrics.observe(TASK_SECONDS, (name, "ok" if outcome in ("success", "ignore") else "error"), runtime)
            if error is not None:
                exception = raised(error)
                if exception is not None:
                    metrics.inc(TASK_EXCEPTIONS, (name, exception))
            if outcome not in _TOLD and hasattr(self, "_hardening"):
                task_log.ended_in_parent(self, outcome, runtime=runtime, error=error)
        except Exception:
            logger.exception("the end of %s is not counted as it should: %s", self.id, outcome)
        run_reports.ended(self, outcome, runtime=runtime, error=error, again=self._again)

    def _noted(self) -> Outcome | None:
        return (self._metrics or self._find_metrics()).noted(str(self.id))

    def _count_wait(self) -> None:
        published = published_in(self._request_dict)
        if published is None or self.time_start is None:
            return
        due = published if self.eta is None else max(published, self.eta.timestamp())
        wait = self.time_start - due
        metrics = self._metrics or self._find_metrics()
        if wait < 0:
            metrics.inc(CLOCK_SKEW)
            wait = 0.0
        metrics.observe(TASK_WAIT_SECONDS, (self._queue,), wait)

    @property
    def _queue(self) -> str:
        return getattr(self._message, "hardened_queue", "") or self.delivery_info["routing_key"] or ""

    def _find_metrics(self) -> Metrics:
        """Kept with the class that Celery has made for this task of this app: looked up once, not for each task."""
        found = type(self)._metrics = Hardening.expect(self._app).metrics
        return found


def _counting(own: Callable[..., Any]) -> Callable[..., Any]:
    """*own*, an ``on_success``, and then the count of a success. A failure goes from it to ``on_failure``."""

    @wraps(own)
    def on_success(self: CountedRequest, failed__retval__runtime: Any, **options: Any) -> Any:
        failed, _, runtime = failed__retval__runtime
        # A greenlet that was killed says that it has not failed, and takes no time (``_make_killable_target``): who has
        # killed it tells of it.
        if failed or runtime is None:
            return own(self, failed__retval__runtime, **options)
        try:
            return own(self, failed__retval__runtime, **options)
        finally:
            # Only a run that has a key can have been answered with the result of an earlier one.
            noted = self._noted() if OWNER in self._request_dict["properties"] else None
            self._count(noted or "success", runtime)

    return on_success
