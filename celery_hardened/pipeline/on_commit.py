"""Publish on commit: what user code publishes inside a transaction is sent after its commit, or never.

Only publishes of user code wait. Retries, ``replace``, callbacks, chain links, redrives and
beat never do: ``raise self.retry()`` inside ``atomic()`` rolls back, and a retry that waited
for the commit would be dropped with it, and the task lost.

A waiting publish is held by the transaction alone (Django's list of callbacks, the session's
of ours), so that what drops it there, the rollback of a savepoint too, drops it everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kombu import Connection, Producer
from kombu.serialization import dumps, loads

from celery_hardened.dedup.decorator import options_of
from celery_hardened.errors import PayloadTooLargeError
from celery_hardened.hardening import Hardening
from celery_hardened.key import bind
from celery_hardened.marks import REFERENCE
from celery_hardened.pipeline.results import DeferredResult, forget
from celery_hardened.pipeline.transactions import Transaction, django_transactions, session_transaction
from celery_hardened.pipeline.waiting import Hook, Send, Waiting
from celery_hardened.serialized import plain

if TYPE_CHECKING:
    from celery_hardened.pipeline.send import Call

# --- whose publish is it? -------------------------------------------------------------------------

Name: TypeAlias = Literal["outside", "trace", "body", "immediately"]

#: Where the current code runs: outside of any task, in Celery's own code around a task's body,
#: in the body, or in a publish that must not wait; and what was so around that.
_place: ContextVar[tuple[Name, Any]] = ContextVar("hardened_place", default=("outside", None))


class _Place:
    """Says for a while where the current code runs. Made once and entered by every run, at the same time too."""

    __slots__ = ("_name",)

    def __init__(self, name: Name) -> None:
        self._name: Name = name

    def __enter__(self) -> None:
        _place.set((self._name, _place.get()))

    def __exit__(self, *_: object) -> None:
        _place.set(_place.get()[1])


_NEVER = ("trace", "immediately")

_TRACE, _BODY, _IMMEDIATELY = _Place("trace"), _Place("body"), _Place("immediately")


def tracing() -> _Place:
    """Around Celery's tracer, which publishes callbacks and chain links of its own."""
    return _TRACE


def running_body() -> _Place:
    """Around the body, inside ``tracing()``: what is published here is the user's."""
    return _BODY


def in_trace() -> bool:
    """Is this a publish of Celery's own tracer: a callback, the next link of a chain, the body of a chord?"""
    return _place.get()[0] == "trace"


def never_waits() -> bool:
    """Is this a publish that waits for no commit, whatever its call says?"""
    return _place.get()[0] in _NEVER


def immediately() -> _Place:
    """Around a publish that never waits for a commit: retry and ``replace``."""
    return _IMMEDIATELY


# --- does it wait? -----------------------------------------------------------------------------------

#: Celery's own task that polls for a chord's members, on result backends that cannot count them.
_CHORD_UNLOCK = "celery.chord_unlock"


class _Block:
    """One ``publishing_on_commit``. Contexts that were copied inside of it know of it after its end too."""

    __slots__ = ("outer", "session")

    def __init__(self, session: Any, outer: _Block | None) -> None:
        self.session = session
        """``None``: the block is left."""
        self.outer = outer


_block: ContextVar[_Block | None] = ContextVar("hardened_block", default=None)


@contextmanager
def publishing_on_commit(session: Any) -> Iterator[None]:
    """Hardened tasks that are published inside wait for the commit of *session*, a SQLAlchemy session.

    Whether the commit comes inside the block or after it makes no difference. The block is of its
    context: what runs in a context of before does not see it, and what was begun inside of it (an asyncio
    task) publishes at once when the block is left.

    Raises:
        TypeError: *session* is no session.
    """
    session_transaction(session)
    block = _Block(session, _block.get())
    token = _block.set(block)
    try:
        yield
    finally:
        block.session = None
        with suppress(ValueError):  # left in another context, as a dependency of FastAPI is
            _block.reset(token)


def _session_of_block() -> Any:
    block = _block.get()
    while block is not None and block.session is None:
        block = block.outer
    return None if block is None else block.session


def deferrable(hardening: Hardening, call: Call, *, on_commit: Any = None) -> Sequence[Transaction]:
    """The transactions that *call* waits for; none: it is sent at once, and its result can be waited for.

    Args:
        on_commit: The option of this call. ``False``: never wait. ``True``: wait, whatever the
            setting says and be the task hardened or not. A session: wait for its commit.

    Raises:
        TypeError: *on_commit* is something else.
    """
    transactions = _transactions(hardening, call, on_commit)
    if not transactions:
        # An id may be used again: one of a publish that was rolled back is that of a task from now on.
        forget(call.options["task_id"])
    return transactions


def _transactions(hardening: Hardening, call: Call, on_commit: Any) -> Sequence[Transaction]:
    # At every publish, nearly always outside of any transaction: the cheap questions first.
    if on_commit is False or never_waits() or (on_commit is None and not _is_hardened(hardening, call)):
        return ()
    transactions = open_transactions(hardening, on_commit)
    if not transactions or (_place.get()[0] == "body" and _goes_on_with(hardening.app.current_worker_task, call)):
        return ()
    # Asked last: it is looked up in a chain of mappings.
    return () if hardening.app.conf.task_always_eager else transactions


def open_transactions(hardening: Hardening, on_commit: Any) -> Sequence[Transaction]:
    """Those that the option *on_commit*, the block and the setting mean. Raises ``TypeError`` as ``deferrable``."""
    session = _session_of_block() if on_commit is None or on_commit is True else on_commit
    if session is not None:
        return [session_transaction(session)]
    return django_transactions() if on_commit or hardening.settings.publish_on_commit else ()


def _is_hardened(hardening: Hardening, call: Call) -> bool:
    if call.name == _CHORD_UNLOCK:
        # It would poll for ever for members that a rollback has dropped.
        body = call.args[1] if len(call.args) > 1 else (call.kwargs or {}).get("callback")
        name = body.get("task") if isinstance(body, dict) else None
        return bool(getattr(hardening.app._tasks.get(name), "is_hardened", False))
    return bool(getattr(call.task, "is_hardened", False))


def _goes_on_with(running: Any, call: Call) -> bool:
    """Does *call* stand for the *running* task, or join its group?

    ``add_to_chord`` has told the chord of one member more by now; a rollback that dropped that
    member would leave the chord waiting for ever.
    """
    if running is None:
        return False
    group_id = call.options.get("group_id")
    request = running.request
    return call.options["task_id"] == request.id or (group_id is not None and group_id == request.group)


def defer(hardening: Hardening, call: Call, send: Send, transactions: Sequence[Transaction]) -> DeferredResult:
    """Let *call* wait until all of *transactions* have committed; *send* is called then.

    What cannot be sent is refused here, where the transaction can still be rolled back, and
    what is changed between now and the commit is sent as it is now.

    Raises:
        kombu.exceptions.EncodeError: The arguments cannot be serialised.
        PayloadTooLargeError: They are above ``hardened_payload_max``.
        UnusableKeyError: ``@deduplicate`` can take no key from them.
    """
    call = _as_now(hardening, call)
    _require_key(call)
    waiting = Waiting(hardening, call, send)
    for transaction in transactions:
        waiting.hooked(transaction.hold(lambda batch: Hook(waiting, batch)))
    return waiting.result()


def _as_now(hardening: Hardening, call: Call) -> Call:
    """*call* as it is at this moment, with nothing in it that may be closed or changed by the time of the commit."""
    app = hardening.app
    options = dict(call.options)
    given = (options.pop("producer", None), options.pop("publisher", None), options.pop("connection", None))
    other = next((one for one in given if one is not None), None)
    if other is not None:
        # A group's producer goes back to the pool when the group is through; so may the caller's own.
        other = getattr(other, "connection", None) if isinstance(other, Producer) else other
        if isinstance(other, Connection) and _uri(other) != _uri(app.pool.connection):
            options["connection"] = other.clone()
    parent = app.current_worker_task
    if parent is not None and not app.conf.task_inherit_parent_priority:
        # A commit may come in another task, if this one was called inside of it.
        options["root_id"] = options.get("root_id") or parent.request.root_id or parent.request.id
        options["parent_id"] = options.get("parent_id") or parent.request.id
    serializer = options.get("serializer") or getattr(call.task, "serializer", None) or app.conf.task_serializer
    content_type, encoding, data = dumps((call.args or (), call.kwargs or {}), serializer)
    if len(data) > hardening.settings.payload_max:
        has_store = hardening.settings.payload_store is not None
        raise PayloadTooLargeError(call.name, len(data), hardening.settings.payload_max, has_store)
    dumps([options.get(name) for name in ("link", "link_error", "chain", "chord")], serializer)
    args, kwargs = loads(data, content_type, encoding, accept=[content_type])
    return replace(call, args=tuple(args), kwargs=kwargs, options=options)


def _require_key(call: Call) -> None:
    """The key of ``@deduplicate`` is taken after the commit; that there is one is made sure of now."""
    policy = options_of(call.task)
    if policy is not None and not call.awaited and REFERENCE not in (call.kwargs or ()):
        policy.key.digest(call.name, bind(call.name, call.task.run, call.args, call.kwargs), plain)


def _uri(connection: Connection) -> str:
    return str(connection.as_uri(include_password=True))
