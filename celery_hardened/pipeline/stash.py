"""Large arguments of a publish go to the payload store; see ``pipeline/payload.py`` for what becomes of them."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from kombu.serialization import dumps

from celery_hardened.claim_check.contract import PayloadStore
from celery_hardened.claim_check.once import Once
from celery_hardened.claim_check.open import open_store
from celery_hardened.claim_check.policy import KEY, PICKLE, Reference, pack, surely_below
from celery_hardened.claim_check.signatures import HELD, UNLOCK, each_in, held_in
from celery_hardened.errors import PayloadTooLargeError
from celery_hardened.hardening import Hardening
from celery_hardened.logs import log_args
from celery_hardened.pipeline.patience import patiently

logger = logging.getLogger("celery_hardened.payload")

#: Shown of arguments that are in the store, where nothing better is known.
_HIDDEN = {"argsrepr": "(...)", "kwargsrepr": "{}"}


#: Seconds of delay for which a payload that is sent again gets more time; no retry of ours waits so long.
_LONG = 86400.0


def store_of(hardening: Hardening) -> PayloadStore | None:
    """The store that ``hardened_payload_store`` names, opened once; ``None`` if it is not set.

    Raises:
        ConfigurationError: It is no URL of a store, or what it needs is not installed. At worker start too.
    """
    known = hardening.__dict__
    if "payload_store" not in known:
        url = hardening.settings.payload_store

        def client(other: str | None) -> Any:
            from celery_hardened.redis_connection import connect

            if other is None:
                return hardening.redis
            return connect(hardening.app, replace(hardening.settings, redis_url=other))

        # Of two threads that open it at once, both use the first one's: in memory they would not meet.
        opened = url and open_store(url, redis=client, prefix=lambda: hardening.prefix, usual=kept_for(hardening))
        known.setdefault("payload_store", opened)
    return known["payload_store"] or None


def kept_for(hardening: Hardening) -> float:
    """Seconds after which a payload is too old, if nothing needs it longer: a delay, a letter, a key."""
    return hardening.settings.payload_max_age or hardening.settings.kept_for


def stash(
    hardening: Hardening, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any], Mapping[str, Any], list[str]]:
    """Put large arguments of a publish away, its own and those of the signatures in its *options*.

    For hardened tasks, and for names this process has no task of. Called at every publish, last before
    ``send_task``; what is small is returned as it is, without being encoded.

    Returns:
        What to publish instead (the caller's objects are not changed), and the names of what was
        put away, for ``forget`` if nothing was sent.

    Raises:
        PayloadTooLargeError: They are above ``hardened_payload_max``. Nothing was put away.
        StoreUnavailableError: The store did not take them. Nothing was put away.
        ConfigurationError: ``hardened_payload_store`` cannot be opened.
    """
    small = surely_below((args, kwargs), _limit(hardening)) or not _concerns(hardening, name)
    if KEY in kwargs:  # a signature's reference, or a retry's; a chain's result may be before it
        if "argsrepr" not in options:
            options = {**options, **_HIDDEN}
        _keep_for_delay(hardening, kwargs, options)
    unlock = name == UNLOCK
    if small and not unlock and not any(map(options.get, HELD)):
        return args, kwargs, options, []
    if hardening.settings.observe or hardening.app.conf.task_protocol == 1:
        return args, kwargs, options, []
    publish = _Publish(hardening, options.get("group_id"), delay_of(options))
    try:
        reference = None if small else publish.put_away(name, args, kwargs, options.get("serializer"), delay=0.0)
        if reference is not None:
            options = {**options, **_shown(hardening, name, args, kwargs)}
            args, kwargs = (), reference.as_kwargs()
        if unlock:
            args = each_in(args, publish)
        options = held_in(options, publish)
    except BaseException:
        forget(hardening, publish.names)
        raise
    return args, kwargs, options, publish.names


def forget(hardening: Hardening, names: Sequence[str]) -> None:
    """Nothing was sent, for certain: remove what ``stash`` put away. Never raises: else its age removes it."""
    each(hardening, names, "removed", lambda store, name: store.delete(name))


def each(hardening: Hardening, names: Sequence[str], what: str, step: Callable[[PayloadStore, str], object]) -> None:
    """Do *step* for every one of *names*; a store that fails is logged: *what* they are not. Never raises."""
    for name in names:
        try:
            store = store_of(hardening)
            if store is not None:
                step(store, name)
        except Exception as problem:  # noqa: BLE001 - the task has ended, whatever a store makes of it
            logger.warning("payload %s is not %s before its age does it: %s", name, what, problem)


@dataclass(frozen=True, slots=True)
class _Publish:
    """One publish, and what was put away for it alone."""

    hardening: Hardening
    group: str | None
    delay: float
    """Seconds until it may start, and with it whatever its message holds."""

    names: list[str] = field(default_factory=list)
    once: Once = field(default_factory=Once)

    def __call__(self, signature: Mapping[str, Any], *, shared: bool) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
        name, options = signature.get("task") or "", signature.get("options") or {}
        args, kwargs = signature.get("args") or (), signature.get("kwargs") or {}
        if not _concerns(self.hardening, name) or surely_below((args, kwargs), _limit(self.hardening)):
            return None
        future = options.get("task_id")
        reference = self.put_away(
            name, args, kwargs, options.get("serializer"), delay=delay_of(options), future=future, shared=shared
        )
        return None if reference is None else ((), reference.as_kwargs())

    def put_away(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        serializer: str | None,
        *,
        delay: float,
        future: str | None = None,
        shared: bool = False,
    ) -> Reference | None:
        """Put arguments away if they are large, for *delay* seconds longer than the publish itself is delayed.

        *future*: id of the task that a signature will be.
        """
        hardening, settings = self.hardening, self.hardening.settings
        store, task = store_of(hardening), hardening.app._tasks.get(name)
        serializer = serializer or getattr(task, "serializer", None) or hardening.app.conf.task_serializer
        try:
            content_type, _, encoded = dumps((list(args), dict(kwargs)), serializer)
        except Exception:  # noqa: BLE001 - the publish itself says what is wrong with them
            return None
        data = encoded.encode() if isinstance(encoded, str) else bytes(encoded)
        if len(data) > settings.payload_max and (store is not None or task is not None):
            raise PayloadTooLargeError(name, len(data), settings.payload_max, store is not None)
        if store is None or len(data) < settings.payload_threshold or content_type == PICKLE:
            return None
        # A chord's body goes into the message of every member, and several times into one that leads to a chord.
        once = self.once if self.group is None else _once(hardening)
        key = (self.group, future, hashlib.sha256(data).hexdigest(), shared) if future else None
        if key is not None and (found := once.find(key)) is not None:
            return found
        reference, stored = pack(data, name=uuid4().hex, content_type=content_type, shared=shared)
        put(hardening, store, reference.name, stored, max_age=kept_for(hardening) + self.delay + delay)
        if key is not None:
            once.note(key, reference)
        if key is None or self.group is None:  # else another message may hold it by now, and nobody takes it back
            self.names.append(reference.name)
        return reference


def delay_of(options: Mapping[str, Any]) -> float:
    """Seconds until a publish with *options* may start: ``countdown``, or until ``eta``. 0 if they say none, or
    what cannot be read: the publish itself says so."""
    countdown, eta = options.get("countdown"), options.get("eta")
    try:
        if countdown is not None:
            return max(0.0, float(countdown))
        if eta is None:
            return 0.0
        when = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        return max(0.0, when.timestamp() - time.time())
    except (TypeError, ValueError, AttributeError, OverflowError):
        return 0.0


def _keep_for_delay(hardening: Hardening, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """A reference is sent again, to start so late that its payload may be too old by then."""
    delay = delay_of(options)
    if delay <= _LONG:
        return
    reference = kwargs[KEY]
    names = [str(reference.get("name"))] if isinstance(reference, Mapping) else []
    age = kept_for(hardening) + delay
    each(hardening, names, "kept", lambda store, name: store.keep(name, max_age=age))


def put(hardening: Hardening, store: PayloadStore, name: str, data: bytes, *, max_age: float) -> None:
    """Put *data* away; inside a task as patiently as its letter is written. Raises ``StoreUnavailableError``."""
    if hardening.app.current_worker_task is None:
        store.put(name, data, max_age=max_age)
    else:
        patiently(hardening, lambda: store.put(name, data, max_age=max_age))


def _once(hardening: Hardening) -> Once:
    once: Once = hardening.__dict__.setdefault("payloads_put_once", Once())
    return once


def _limit(hardening: Hardening) -> int:
    settings = hardening.settings
    return settings.payload_max if settings.payload_store is None else settings.payload_threshold


def _concerns(hardening: Hardening, name: str) -> bool:
    task = hardening.app._tasks.get(name)
    if task is None:
        return not name.startswith("celery.")  # those are registered late
    return bool(getattr(task, "is_hardened", False))


def _shown(hardening: Hardening, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str]:
    """What may be shown of the arguments is taken from them now: the message has a reference."""
    task = hardening.app._tasks.get(name)
    shown = ", ".join(f"{key}={value!r}" for key, value in log_args(task, args, kwargs).items()) if task else ""
    return {**_HIDDEN, "argsrepr": f"({shown})"} if shown else _HIDDEN
