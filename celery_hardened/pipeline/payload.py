"""Large arguments: put into the payload store before the publish, fetched before the body, removed at the end.

::

    producer   stash ── publish              publish failed for certain: forget
    worker     fetch ── body ── result, chain and callbacks ── done ── ack
               a retry sends the reference again · a dead letter keeps its payload · discard removes it

Killed between any two of these: what ``stash`` left lies there until it is too old, what was fetched
is fetched again, and a message that comes back after ``done`` finds that its task has ended.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

from celery.states import RETRY
from kombu.serialization import loads, prepare_accept_content

from celery_hardened.claim_check.policy import KEY, pack, references_in, unpack
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.errors import HardenedError, PayloadMissingError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.fetch import NOTHING, Running, decoded, fetch, for_retry, lenient, load, read, running
from celery_hardened.pipeline.stash import each, forget, kept_for, put, stash, store_of

__all__ = [
    "discard",
    "done",
    "ended",
    "fetch",
    "for_retry",
    "forget",
    "keep",
    "lenient",
    "load_result",
    "stash",
    "store_of",
    "store_result",
    "sweep",
    "tracing",
]

logger = logging.getLogger("celery_hardened.payload")

#: Seconds between two sweeps by one process; the first comes within a sixth of it.
_SWEEP_EVERY = 3600.0

_uniform = random.SystemRandom().uniform

#: Payloads of one letter that are kept, or removed, with it; a chain may be long, a forged one is longer.
_MOST = 1000


def tracing(trace: Callable[..., Any]) -> Callable[..., Any]:
    """*trace* (``Task.__trace__``), after whose success the payloads it fetched are ``done``.

    So they are after a retry with new arguments, which does not need them; what comes back of its own message
    has been retried. Inside ``stand_in.tracing``: it comes after the result is stored, chain and callbacks are
    sent, and the chord is told, and before the message is acked.
    """

    def trace_and_end(*args: Any, **options: Any) -> Any:
        token = running.set(NOTHING)
        run: Running | None = NOTHING
        try:
            traced = trace(*args, **options)
            run = running.get()
        finally:
            running.reset(token)
        if run is not None and run.hardening is not None and _are_done(run, traced[1]):
            done(run.hardening, run.names)
        return traced

    return trace_and_end


def _are_done(run: Running, info: Any) -> bool:
    """*info*: how Celery's tracer says that a run did not succeed."""
    return info is None or run.ended or (run.superseded and getattr(info, "state", None) == RETRY)


def ended() -> None:
    """The task that runs now has ended itself by ``Ignore``, or replaced itself: its message is acked, and
    its payloads are ``done`` as after a success. Called by the pipeline, for what the body raised alone."""
    run = running.get()
    if run is not None and run is not NOTHING:
        run.ended = True


def done(hardening: Hardening, names: Sequence[str]) -> None:
    """The task has ended well, and everything that follows from it is sent. Never raises."""
    age = kept_for(hardening)
    each(hardening, names, "removed", lambda store, name: store.finish(name, max_age=age))


# --- dead letters -----------------------------------------------------------------------------------


def keep(hardening: Hardening, letter: DeadLetter) -> None:
    """A dead letter was written: its payloads are to live as long as it may. Never raises."""
    found = {str(raw.get("name")) for raw in references_in(_body(hardening, letter))}
    names = list(islice(found, _MOST))
    usual = hardening.settings.dead_letter_max_age
    age = kept_for(hardening) + max(0.0, (letter.max_age or usual) - usual)
    each(hardening, names, "kept", lambda store, name: store.keep(name, max_age=age))


def discard(hardening: Hardening, letter: DeadLetter) -> None:
    """A dead letter was closed for good: remove its payloads, and those of the rest of its chain. Never raises.

    Not those of callbacks and of a chord's body, which other messages may hold.
    """
    args, kwargs, embed = _body(hardening, letter)
    chain = embed.get("chain") if isinstance(embed, Mapping) else None
    names: list[str] = []
    found = [*references_in([args, kwargs, chain])]
    while found and len(names) < _MOST:
        raw = found.pop()
        if raw.get("shared") is not True:
            names.append(str(raw.get("name")))
            found.extend(references_in(_inside(hardening, letter, raw)))
    each(hardening, names, "removed", lambda store, name: store.delete(name))


def _body(hardening: Hardening, letter: DeadLetter) -> tuple[Any, Any, Any]:
    """Arguments and links of its message, if there is a reference among them that can be read."""
    if KEY.encode() not in letter.body or letter.body_compressed:
        return (), {}, {}
    try:
        accept = prepare_accept_content(hardening.app.conf.accept_content)
        args, kwargs, embed = loads(letter.body, letter.content_type, letter.content_encoding, accept=accept)
    except Exception as problem:  # noqa: BLE001 - the body is foreign
        logger.warning("payloads of dead letter %s are left to their age: %r", letter.id, problem)
        return (), {}, {}
    return args, kwargs, embed


def _inside(hardening: Hardening, letter: DeadLetter, raw: Mapping[str, Any]) -> Any:
    """What lies in a payload: it may hold another reference."""
    store = store_of(hardening)
    try:
        reference = read(hardening, str(letter.task), raw)
        stored = store.get(reference.name, most=reference.size) if store is not None else None
        if not stored:
            return None
        return decoded(hardening, unpack(reference, stored), reference)
    except Exception as problem:  # noqa: BLE001 - the reference is foreign, and so is what it leads to
        logger.debug("payload of dead letter %s is not looked into: %r", letter.id, problem)
        return None


# --- age --------------------------------------------------------------------------------------------


def sweep(hardening: Hardening) -> None:
    """Remove payloads that are too old, at most once an hour. Called from a worker's upkeep. Never raises.

    In a thread: a listing of a large bucket takes longer than a worker's timer may.
    """
    if hardening.settings.payload_store is None or hardening.settings.observe:
        return
    now, known = time.monotonic(), hardening.__dict__
    due = known.setdefault("payload_sweep_due", now + _uniform(0, _SWEEP_EVERY / 6))
    if now >= due:
        known["payload_sweep_due"] = now + _SWEEP_EVERY
        threading.Thread(target=sweep_now, args=(hardening,), name="hardened-payload-sweep", daemon=True).start()


def sweep_now(hardening: Hardening) -> int:
    """One sweep; how many were removed. Never raises."""
    try:
        store = store_of(hardening)
        gone = store.sweep(kept_for(hardening)) if store is not None else 0
    except HardenedError as problem:
        logger.warning("payloads are swept later: %s", problem)
        return 0
    except Exception:
        logger.exception("the sweep of payloads failed")
        return 0
    if gone:
        logger.info("%s payloads were too old and are removed", gone)
    return gone


# --- results of finished work ---------------------------------------------------------------------------


def store_result(hardening: Hardening, data: bytes, *, max_age: float) -> dict[str, Any] | None:
    """Put the result of finished work away; the reference, as JSON can hold it.

    ``None``: there is no store, or it is above ``hardened_payload_max``. Raises ``StoreUnavailableError``.
    """
    store = store_of(hardening)
    if store is None or not 0 < len(data) <= hardening.settings.payload_max:
        return None
    reference, stored = pack(data, name=uuid4().hex)
    put(hardening, store, reference.name, stored, max_age=max_age)
    return reference.as_dict()


def load_result(hardening: Hardening, task: str, reference: object) -> bytes:
    """The result that was put away.

    Raises:
        PayloadMissingError: It is too old, or this process looks into another store.
        PayloadCorruptError: It is not what was put there.
        StoreUnavailableError: The store does not answer.
    """
    found = read(hardening, task, reference)
    data = load(hardening, task, found)
    if data is None:
        raise PayloadMissingError(task, found.name)
    return data
