"""HardenedTask, and the leaf that ``harden(app)`` puts outermost on every task.

Names Celery's seams, decides nothing.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Celery, Task
from celery.exceptions import Retry
from celery.utils import uuid
from celery.utils.imports import symbol_by_name
from celery.utils.objects import mro_lookup

from celery_hardened.dead_letter.stand_in import tracing
from celery_hardened.errors import NotHardenedError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import Marks
from celery_hardened.pipeline import celery_lines, checkpoint, on_commit, payload
from celery_hardened.pipeline.checkpoint import Checkpoint
from celery_hardened.pipeline.eager import apply_all
from celery_hardened.pipeline.execute import execute
from celery_hardened.pipeline.execution import Execution
from celery_hardened.pipeline.on_commit import immediately
from celery_hardened.pipeline.retry import NOTES, publish_retry, verdict_on_explicit
from celery_hardened.preset import annotated, lay_task

logger = logging.getLogger("celery_hardened")

if TYPE_CHECKING:
    from celery import Task as _Task
else:
    _Task = object  # mix-ins: the class they are composed with is the task's own


class _HardenedSeams(_Task):  # type: ignore[misc]
    """What makes a task hardened. Apart from ``HardenedTask``, so that ``harden(app, tasks="all")`` can
    put it above a user's own class without covering what that class says."""

    is_hardened: ClassVar[bool] = True

    @classmethod
    def bind(cls, app: Celery) -> Any:
        if str(cls.name).startswith("celery."):  # the app's task class is a HardenedTask; Celery's own tasks stay
            cls.is_hardened = False
            return super().bind(app)
        hardening = Hardening.of(app)
        if hardening is None:
            # Celery is about to fill what is unset from app.conf; harden(app) may still come
            # and must be able to tell that from the user's own word.
            unset = {name for name, _ in cls.from_config if getattr(cls, name, None) is None}
            before = cls.__dict__.get("_filled_by_celery", frozenset())
            cls._filled_by_celery = (unset | before) - annotated(cls, app)
            return super().bind(app)
        for name, _ in cls.from_config:
            owner = next((one for one in cls.__mro__ if name in one.__dict__), cls)
            if name in owner.__dict__.get("_filled_by_celery", ()):
                setattr(cls, name, None)
        if not hardening.settings.observe:
            lay_task(cls, app=app, settings=hardening.settings)
        return super().bind(app)

    def apply_async(self, *args: Any, **options: Any) -> Any:
        self._require_hardened_app()
        return super().apply_async(*args, **options)

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        link: Any = None,
        link_error: Any = None,
        task_id: str | None = None,
        retries: int | None = None,
        throw: bool | None = None,
        **options: Any,
    ) -> Any:
        self._require_hardened_app()
        options.pop("on_commit", None)
        if throw is None:
            throw = self.app.conf.task_eager_propagates
        attempt = partial(super().apply, args, kwargs, link, link_error, retries=retries, **options)
        return apply_all(attempt, task_id=task_id or uuid(), retries=retries or 0, throw=throw)

    def start_strategy(self, app: Celery, consumer: Any, **options: Any) -> Any:
        if Hardening.of(app) is None and Hardening.elsewhere(self):
            # Celery gives @app.task to every app of the process. This worker is the other app's.
            logger.warning("task %s is hardened in another app, not in %s, where it is plain", self.name, app.main)
            return super().start_strategy(app, consumer, **options)
        self._require_hardened_app()
        return super().start_strategy(app, consumer, **options)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: Any = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Celery's ``retry``, sharing one policy with automatic retries.

        Without *countdown* and *eta* the delay is the policy's (full jitter, ``Retry-After``
        as a lower bound). An explicit *countdown* or *eta* is taken as it is. With any of these
        or *max_retries* the horizon does not apply.
        A retry that would come after the message ``expires`` fails at once.

        Raises:
            celery.exceptions.Retry: The next attempt is on its way.
            celery.exceptions.Reject: It could not be published; the message goes back to the broker.
            MaxRetriesExceededError: No attempt is left, and no *exc* was given; else *exc*.
        """
        request = self.request
        hardening = Hardening.of(self.app)
        if request.called_directly or hardening is None or not self.is_hardened or hardening.settings.observe:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if isinstance(exc, type) and issubclass(exc, BaseException):
            exc = exc()  # as raise would
        if exc is not None and not isinstance(exc, BaseException):
            raise TypeError(
                f"{self.name}.retry(exc={exc!r}): exc must be an exception, not {type(exc).__name__}; "
                f"Celery would notice only when the retries run out."
            )
        checkpoint.close(self, finished=False)  # what it has come to is saved, and starts the attempts anew
        delay = verdict_on_explicit(
            self, exc, eta=eta, countdown=countdown, max_retries=max_retries, hardening=hardening
        )
        notes = request.__dict__.setdefault(NOTES, {})
        claim = notes.get("claim")
        if throw and claim is not None and not claim.transactional:
            claim.release()  # before it is published: see execute._retry
        slot = notes.get("slot")
        if throw and slot is not None:
            slot.release()
        try:
            outcome = publish_retry(
                self,
                self.retry_as_celery,
                error=exc,
                delay=delay,
                marks=Marks.read(request.headers),
                options={
                    "args": args,
                    "kwargs": kwargs,
                    "exc": exc,
                    "throw": throw,
                    "eta": eta,
                    "countdown": None if eta else delay,
                    **options,
                },
                hardening=hardening,
            )
        except Retry as sent:
            notes["pending"] = sent  # a body that catches it and returns has not succeeded: the retry runs
            raise
        notes["pending"] = outcome  # of throw=False, likewise
        return outcome

    @property
    def execution(self) -> Execution:
        """What this run can ask about itself: its ``key`` and ``fence``, and whether it is still its own."""
        return Execution(self)

    @property
    def checkpoint(self) -> Checkpoint:
        """How far this work has come: ``load``, ``save``, ``iterate``."""
        return Checkpoint.of(self)

    def retry_as_celery(self, **options: Any) -> Any:
        """``Task.retry`` of the class below: publishes at once and raises ``Retry``, asking no policy."""
        with immediately():
            return super().retry(**options)

    def _require_hardened_app(self) -> None:
        if Hardening.of(self.app) is None:
            raise NotHardenedError(str(self.name), str(self.app.main or self.app))


class HardenedTask(_HardenedSeams, Task):  # type: ignore[misc]
    """Base class of hardened tasks. Subclass it to set policy for a family of tasks.

    ::

        class BillingTask(HardenedTask):
            abstract = True
            autoretry_for = (GatewayDown,)
            max_retries = 8

        @app.task(base=BillingTask, log_args=("invoice_id",))
        def charge(invoice_id: str) -> str: ...

    Celery's own attributes keep their names and meanings. What a task leaves unset
    comes from ``app.conf``, then from our preset: late acks, ``reject_on_worker_lost``,
    time limits of 240/300 s, ten retries of transient errors with full jitter.

    Raises:
        NotHardenedError: The app was never given to ``harden()``; at the first publish or
            at worker start, not at import.
    """

    abstract = True

    autoretry_for: tuple[type[BaseException], ...] = ()
    """Errors to retry besides the built-in transient ones."""

    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    """Errors never to retry, whatever else says so."""

    retry_for: timedelta | float | None
    """Horizon: no retry later than this after the first publish (seconds or ``timedelta``)."""

    log_args: tuple[str, ...] = ()
    """Names of arguments that may be logged and shown. No other argument ever is."""

    park_chords: bool | None = None
    """Keep the chord of this task's dead letter open; ``None``: ``hardened_park_chords``."""

    dead_letter_max_age: float | None = None
    """Seconds this task's letters are kept; ``None``: ``hardened_dead_letter_max_age``."""

    def classify(self, error: BaseException) -> str | bool | None:  # noqa: ARG002 - a hook to override
        """Say ``"transient"`` or ``"permanent"`` of *error*, or ``None`` to leave it to the built-in table.

        Asked after ``dont_autoretry_for`` and ``autoretry_for``. ``True`` is transient, ``False`` permanent.
        """
        return None


class _Leaf(_Task):  # type: ignore[misc]
    """Outermost class of every task of a hardened app: hands each call to the pipeline.

    It is put above the task's own class (see ``on_leaf``), so it comes before a user's
    ``__call__`` that calls ``self.run()``; one on a base class would be bypassed there.
    """

    is_hardened: ClassVar[bool]
    _custom_call: ClassVar[bool]
    Request: Any

    def __init_subclass__(cls, **options: Any) -> None:
        """Not the user's: the leaf is no class of his, and his may ask for keywords or keep a list."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "_orig_run" in self.__dict__ and self.is_hardened and not self.request.called_directly:
            # A worker has taken it off at its start; eager mode and a spawned child come here first.
            hardening = Hardening.of(self.app)
            if hardening is not None and not hardening.settings.observe:
                without_celery_autoretry(self)
        # Celery's own __call__ pushes a request, which in eager mode would hide the real one.
        body = super().__call__ if self._custom_call or self.request.called_directly else self._body()
        return execute(self, body, args, kwargs)

    @property
    def __trace__(self) -> Any:
        """What a pool process calls for each message; Celery sets it."""
        return self.__dict__.get("_hardened_trace")

    @__trace__.setter
    def __trace__(self, trace: Any) -> None:
        self.__dict__["_hardened_trace"] = trace if trace is None else traced(trace)

    def _body(self) -> Any:
        return self.run

    def replace(self, sig: Any, *args: Any, **options: Any) -> Any:
        """Celery's ``replace``; what takes its place is sent at once, also inside a transaction, which the
        exception it raises would roll back."""
        with immediately():
            return super().replace(sig, *args, **options)

    def start_strategy(self, app: Celery, consumer: Any, **options: Any) -> Any:
        from celery_hardened.pipeline.counting import compose_counted

        self.Request = compose_counted(symbol_by_name(self.Request))
        if self.Strategy == Task.Strategy:
            options.setdefault("info", celery_lines.received)
        return super().start_strategy(app, consumer, **options)


def traced(trace: Any) -> Any:
    """Celery's tracer of a task with what is ours around it: its publishes are no user's, payloads end with
    it, and its failures are such as the parent can take."""
    inner = tracing(payload.tracing(trace))

    def trace_hardened(*args: Any, **options: Any) -> Any:
        with on_commit.tracing():
            return inner(*args, **options)

    return trace_hardened


#: How Celery itself asks whether a class overrides ``__call__``.
_CELERY_OWN_CALL: dict[str, Any] = {"stop": {Task, object}, "monkey_patched": ["celery.app.task"]}


def on_leaf(task: Any, *, app: Celery, harden_all: bool) -> None:
    """Give *task* (an instance) a leaf class of its own: hardened or contained. Twice changes nothing.

    The instance's class is exchanged, not changed: a user's class may be the base of other
    tasks, of other apps too.
    """
    cls = type(task)
    if isinstance(task, _Leaf) or str(task.name).startswith("celery."):
        return
    hardened = harden_all or isinstance(task, HardenedTask)
    bases: tuple[type, ...] = (_Leaf, cls)
    if hardened and not isinstance(task, HardenedTask):
        bases = (_Leaf, _HardenedSeams, cls)
    app_wide = app.__dict__.get("Task") or symbol_by_name(app.task_cls)
    if isinstance(task, HardenedTask) and not issubclass(cls, app_wide):
        bases = (*bases, app_wide)  # what the app gives all its tasks, such as Django's delay_on_commit
    leaf = type(
        cls.__name__,
        bases,
        {
            "__module__": cls.__module__,
            "__doc__": cls.__doc__,
            "__qualname__": cls.__qualname__,
            "is_hardened": hardened,
            "_custom_call": any(mro_lookup(base, "__call__", **_CELERY_OWN_CALL) for base in bases[1:]),
        },
    )
    task.__class__ = leaf
    header = getattr(task, "__header__", None)
    if header is not None:
        task.__header__ = payload.lenient(header)
    task.__dict__.pop("__trace__", None)


def without_celery_autoretry(task: Any) -> None:
    """Take Celery's autoretry wrapper off a hardened task, so that the pipeline sees every error first."""
    original = task.__dict__.get("_orig_run")
    # If run is not the wrapper, a test of the user's has replaced it for a while.
    if original is not None and getattr(task.run, "__wrapped__", None) == original:
        task.run = original  # before the next line: another thread may be looking
        task.__dict__.pop("_orig_run", None)
