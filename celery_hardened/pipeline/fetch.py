"""The arguments of a start, fetched from the payload store; see ``pipeline/payload.py`` for the whole of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

from celery.exceptions import Ignore, Reject
from kombu.serialization import loads, prepare_accept_content

from celery_hardened.claim_check.contract import ENDED
from celery_hardened.claim_check.policy import DEPTH, KEY, PICKLE, Reference, laid_over, unpack
from celery_hardened.errors import PayloadCorruptError, PayloadMissingError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import Marks
from celery_hardened.pipeline.patience import patiently
from celery_hardened.pipeline.stash import store_of

logger = logging.getLogger("celery_hardened.payload")

#: Where a request says what its message held. A plain attribute: Celery copies none into a retry.
_HELD = "hardened_payload"


@dataclass(slots=True)
class Running:
    """What the task that runs now has fetched, and nobody else needs."""

    hardening: Hardening | None = None
    names: list[str] = field(default_factory=list)
    ended: bool = False
    """It has ended itself, by ``Ignore``."""

    superseded: bool = False
    """Its retry was given new arguments: once that is on its way, nobody fetches these again."""


#: Of a run that has fetched nothing, as most: one for all of them.
NOTHING: Final = Running()

#: ``None``: no run of a message.
running: ContextVar[Running | None] = ContextVar("hardened_running_payloads", default=None)


@dataclass(frozen=True, slots=True)
class _Held:
    """The arguments of a message, reference and all."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def fetch(
    hardening: Hardening, task: Any, args: Sequence[Any], kwargs: dict[str, Any], *, direct: bool = False
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments a call of *task* really has; as they are, if there is no reference among them.

    Called for every start. The request gets the real arguments too, for hooks and ``log_args``;
    ``for_retry`` knows what the message held.

    Args:
        direct: A call as a function, which is no start (Celery calls some errbacks so, a task's own
            maybe): no request is touched, and no payload ends with it.

    Raises:
        PayloadMissingError, PayloadCorruptError: Permanent failures of the task.
        StoreUnavailableError: The store does not answer; transient.
        celery.exceptions.Ignore: The message has come back after its task had ended.
        celery.exceptions.Reject: The store does not answer, and the task has no retries of ours.
    """
    if KEY not in kwargs:
        return args, kwargs
    request = task.request
    direct = direct or request.called_directly or request.is_eager
    held = _Held(list(args), dict(kwargs))
    real_args, real_kwargs = list(args), dict(kwargs)
    own: list[str] = []
    for _ in range(DEPTH):
        reference = read(hardening, task.name, real_kwargs[KEY])
        stored_args, stored_kwargs = _arguments(hardening, task, reference, direct=direct)
        real_args, real_kwargs = laid_over(real_args, real_kwargs, stored_args, stored_kwargs)
        if not reference.shared:
            own.append(reference.name)
        if KEY not in real_kwargs:
            break
    else:
        raise PayloadCorruptError(task.name, reference.name, f"more than {DEPTH} references lie in each other")
    if direct:
        return real_args, real_kwargs
    request.__dict__[_HELD] = held
    if running.get() is not None:
        running.set(Running(hardening, own))
    # In place: Celery hands these very objects to hooks and signals.
    if isinstance(request.args, list):
        request.args[:] = real_args
    else:
        request.args = real_args
    if isinstance(request.kwargs, dict):
        request.kwargs.clear()
        request.kwargs.update(real_kwargs)
    return real_args, real_kwargs


def _arguments(
    hardening: Hardening, task: Any, reference: Reference, *, direct: bool
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    try:
        data = load(hardening, task.name, reference)
    except StoreUnavailableError as problem:
        if task.is_hardened or direct or not task.acks_late:
            raise
        raise Reject(problem, requeue=True) from problem  # Celery would fail it for good
    if data is None:
        if direct:
            raise PayloadMissingError(task.name, reference.name)
        logger.warning("%s has ended before; what comes back of it ends here", task.name)
        raise Ignore("its task has ended")
    try:
        args, kwargs = decoded(hardening, data, reference)
    except Exception as problem:  # whatever a decoder raises
        raise PayloadCorruptError(
            task.name, reference.name, f"it cannot be decoded as {reference.content_type} ({type(problem).__name__})"
        ) from problem
    return args, kwargs


def decoded(hardening: Hardening, data: bytes, reference: Reference) -> tuple[Sequence[Any], Mapping[str, Any]]:
    accept = prepare_accept_content(hardening.app.conf.accept_content) - {PICKLE}
    args, kwargs = loads(data, reference.content_type, "utf-8", accept=accept)
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
        raise TypeError("no arguments")
    if not all(isinstance(name, str) for name in kwargs):
        raise TypeError("no names")
    return args, kwargs


def read(hardening: Hardening, task: str, raw: object) -> Reference:
    try:
        return Reference.read(raw, most=hardening.settings.payload_max)
    except ValueError as problem:
        name = raw.get("name") if isinstance(raw, Mapping) else None
        raise PayloadCorruptError(task, str(name)[:32], str(problem)) from problem


def load(hardening: Hardening, task: str, reference: Reference) -> bytes | None:
    """The bytes that were put away; ``None``: its task has ended."""
    store = store_of(hardening)
    if store is None:
        raise PayloadMissingError(task, reference.name)
    stored = patiently(hardening, lambda: store.get(reference.name, most=reference.size))
    if stored is None:
        raise PayloadMissingError(task, reference.name)
    if stored == ENDED:
        return None
    try:
        return unpack(reference, stored)
    except ValueError as problem:
        raise PayloadCorruptError(task, reference.name, str(problem)) from problem


def for_retry(request: Any, options: dict[str, Any]) -> dict[str, Any]:
    """*options* of ``Task.retry``, with the message's own reference if no new arguments are given."""
    held = request.__dict__.get(_HELD)
    if held is None:
        return options
    if options.get("args") is not None or options.get("kwargs") is not None:
        run = running.get()
        # The letter that a redriven message was may be redriven again, and needs them.
        if run is not None and Marks.read(request.headers).redrive is None:
            run.superseded = True
        return options
    shown = {"argsrepr": request.argsrepr, "kwargsrepr": request.kwargsrepr}
    return {**options, **shown, "args": held.args, "kwargs": held.kwargs}


def lenient(header: Callable[..., Any]) -> Callable[..., Any]:
    """A task's ``__header__`` (Celery's check of arguments at a publish) that lets a reference pass."""

    @wraps(header)
    def check(*args: Any, **kwargs: Any) -> Any:
        return None if KEY in kwargs else header(*args, **kwargs)

    # Celery counts an errback's parameters, and does not look through a wrapper for them.
    check.__signature__ = inspect.signature(header)  # type: ignore[attr-defined]
    return check
