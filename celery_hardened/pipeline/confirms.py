"""A publish to RabbitMQ waits for the broker's word that it has the message, and not for ever.

py-amqp waits without end for a confirmation unless it is told for how long: a broker that has frozen, or a connection
that a firewall forgot, would hold up a web request until somebody ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError

from celery_hardened.dedup.sent import links
from celery_hardened.settings import Settings


@contextmanager
def confirmed_within(settings: Settings, name: str, message: Any, options: dict[str, Any]) -> Iterator[None]:
    """Around the publish of the task *name* to a broker of AMQP: gives *options* a ``confirm_timeout``, unless the
    caller has one. Each of kombu's tries has as long.

    Raises:
        OperationalError: kombu's. If no word came it says that the message may have been published.
    """
    most = settings.confirm_timeout
    if most is None or settings.observe or options.get("confirm_timeout") is not None:
        yield
        return
    options["confirm_timeout"] = most
    try:
        yield
    except Exception as problem:
        if not _unconfirmed(problem):
            raise
        task_id = message.headers.get("id") if message.headers else message.body.get("id")
        raise OperationalError(
            f"{name}[{task_id}] may have been published: the broker did not confirm it within {most:g} s of a try "
            f"(hardened_confirm_timeout). Publish it again under the same task_id if it may run twice or has an "
            f"idempotency key; else look first whether it ran. {type(problem).__name__}: {problem}"
        ) from problem


def _unconfirmed(problem: BaseException) -> bool:
    """Did this try, or one before it, end while it waited for a confirmation?

    The last try may have ended otherwise: on a broker that is silent the next one does not even connect.
    """
    return any(isinstance(link, TimeoutError) and _came_by(link, "basic_publish_confirm") for link in links(problem))


def _came_by(error: BaseException, function: str) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == function:
            return True
        trace = trace.tb_next
    return False
