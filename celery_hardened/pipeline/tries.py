"""A publish knows of all its tries whether one of them may have sent the message.

Who tries again raises the error of the last try: kombu after it has connected anew, and Celery, from 5.7 on, for a
callback, the rest of a chain and a chord's body. A broker that refuses the last one may have the message from the
first. A client may try again by itself (``retry_on_timeout`` of redis-py), which nobody sees. So a try has certainly
sent nothing only if it ended before its message was handed to a channel: no connection, or a declaration that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

from kombu.messaging import Producer

from celery_hardened.dedup.sent import may_have_sent
from celery_hardened.errors import HardenedError, StoreUnavailableError

#: What a message is handed to; the second and the third are py-amqp's.
_CHANNEL = frozenset({"basic_publish", "basic_publish_confirm", "_basic_publish"})


@dataclass(slots=True)
class _Tries:
    handed_over: bool = False
    """Was the message handed to a channel in one of them? Never unsaid."""


#: Those of the publish that is going on here.
_tries: ContextVar[_Tries | None] = ContextVar("hardened_tries", default=None)


@contextmanager
def all_tries(producer: Any) -> Iterator[None]:
    """Around a publish by *producer*: an error that ends it is marked if any try may have sent the message."""
    base: Any = type(producer)
    if issubclass(base, Producer) and not issubclass(base, _Watched):
        producer.__class__ = _watched(base)  # for good: threads may share it
    tries = _Tries()
    token = _tries.set(tries)
    try:
        yield
    except BaseException as error:
        if tries.handed_over:
            may_have_sent(error)
        raise
    finally:
        _tries.reset(token)


class _Watched:
    """Tells the classes made below from others."""


@cache
def _watched(base: type[Producer]) -> type[Producer]:
    class Watched(base, _Watched):  # type: ignore[valid-type,misc]
        def __reduce__(self) -> Any:
            return (base, *super().__reduce__()[1:])  # pickle finds no class of ours

        def _publish(self, *args: Any, **options: Any) -> Any:
            """One try."""
            tries = _tries.get()
            try:
                sent = super()._publish(*args, **options)
            except BaseException as error:
                if tries is not None and _handed_over(error):
                    tries.handed_over = True
                raise
            if tries is not None:
                tries.handed_over = True  # what fails from here on, the event of it say, fails after it
            return sent

    Watched.__qualname__ = Watched.__name__ = base.__name__
    return Watched


def _handed_over(error: BaseException) -> bool:
    """Had a try that ended with *error* its channel, and given the message to it?"""
    if isinstance(error, HardenedError) and not isinstance(error, StoreUnavailableError):
        return False  # our own refusal, in the channel of a beat
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name in _CHANNEL:
            return True
        trace = trace.tb_next
    return False
