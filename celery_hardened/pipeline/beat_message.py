"""The message of a schedule's fire: made by Celery's own publish path, pushed by who claims its slot.

Two ways, one message. ``publish`` goes through ``apply_async`` with a producer whose channel hands the finished
message over instead of pushing it. ``message`` fills in a template that was captured on that way once, for
schedules of which nothing but Celery and this package has a hand in the message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.steps import Outgoing
from celery_hardened.claim_check.policy import surely_below
from celery_hardened.hardening import Hardening
from celery_hardened.marks import REFERENCE
from celery_hardened.pipeline.beat_channel import (
    Capture,
    SlotRefusedError,
    capturing,
    capturing_connection,
)
from celery_hardened.pipeline.beat_eligible import (
    are_plain_options,
    ground,
    has_receivers,
    is_lazy,
    is_plain_expiry,
    is_plain_task,
)
from celery_hardened.pipeline.beat_send import BEAT_HEADER, send
from celery_hardened.pipeline.beat_template import VARYING, Fired, Template, template_of
from celery_hardened.pipeline.publish import FireMarks

__all__ = ["BeatMessages", "FireMarks", "SlotRefusedError"]

logger = logging.getLogger("celery_hardened.beat")

#: Templates that are kept. One is some kilobytes; schedules of the same task and options share theirs.
MAX_TEMPLATES = 4096

#: Seconds between two looks at what templates rest on.
_LOOKS_EVERY = 1.0

_UNKNOWN: Any = object()


class BeatMessages:
    """Messages of one beat. One thread at a time; it connects at the first of them."""

    def __init__(self, app: Celery, hardening: Hardening) -> None:
        self._app: Any = app
        self._hardening = hardening
        self._producer: Any = None
        self._ground: tuple[Any, ...] | None = None
        self._refresh_at = 0.0
        self._templates: dict[tuple[str, bool, str], Template | None] = {}
        """By task and options; ``None``: only ``publish`` makes such messages."""

    def publish(
        self,
        schedule: Schedule,
        *,
        task_id: str,
        fire: FireMarks,
        claim: Callable[[Sequence[Outgoing]], None],
    ) -> bool:
        """Publish *schedule*'s task under *task_id* by Celery's own path.

        Args:
            claim: Pushes the message if the slot may be fired. Called where kombu would have pushed it; with
                nothing to push if its exchange leads to no queue. What it raises ends the publish. Of a
                ``SlotRefusedError`` or another error of this package, and of a ``NotLeaderError``, nothing was sent,
                so that windows and payloads are taken back; of a ``StoreUnavailableError`` and of anything else
                that is not known. It is called again only by user code that publishes again after such an error.

        Returns:
            Was it claimed? ``False``: the path ended without a message, because the task's own ``apply_async``
            or ``@deduplicate`` decided so, or tasks run eagerly.

        Raises:
            Exception: What *claim* raised, unchanged; or what the path raised before the message was claimed. What
                comes after it is logged.
        """
        capture = Capture(task_id, schedule.task, claim)
        try:
            with self._captured(capture):
                send(self._app, schedule, task_id=task_id, fire=fire, producer=self._open())
        except Exception:
            if capture.failed is not None:
                raise capture.failed from None
            if not capture.claimed:
                raise
            logger.warning("%s[%s] was sent; what came after failed", schedule.task, task_id, exc_info=True)
        if capture.failed is not None:  # and a task's own apply_async has caught it
            raise capture.failed
        return capture.claimed

    def message(
        self, schedule: Schedule, *, task_id: str, fire: FireMarks, now: float | None = None
    ) -> tuple[Outgoing, ...] | None:
        """The message that ``publish`` would hand over, made in a fraction of its time.

        Args:
            now: Seconds since the epoch; ``None``: the wall clock.

        Returns:
            ``None``: only ``publish`` may make it, or tell what is wrong with it.
        """
        if time.monotonic() >= self._refresh_at:
            self.refresh()
        if self._ground is None or has_receivers() or is_lazy(schedule):
            return None
        options = schedule.options
        rest = {name: value for name, value in options.items() if name not in VARYING} if options else {}
        has_name = "periodic_task_name" in options
        # By ``repr``, to which 1, 1.0 and True are not the same.
        key = (schedule.task, has_name, repr(rest) if rest else "")
        known = self._templates.get(key, _UNKNOWN)
        task = self._app.tasks.get(schedule.task)
        exec_options = None if task is None else task._get_exec_options()
        if isinstance(known, Template) and (known.task is not task or known.exec_options != exec_options):
            known = _UNKNOWN
        if known is None:
            return None
        fired = Fired(
            task_id,
            list(schedule.args) if schedule.args else [],
            dict(schedule.kwargs) if schedule.kwargs else {},
            {**(options.get("headers") or {}), BEAT_HEADER: True},
            options.get("periodic_task_name"),
            fire,
            time.time() if now is None else now,
        )
        expires = rest.get("expires", (exec_options or {}).get("expires"))
        if not is_plain_expiry(expires, fired.now) or not self._is_small(fired):
            return None
        try:
            if task is not None and task.typing:
                task.__header__(*fired.args, **fired.kwargs)
            if known is _UNKNOWN:
                known = self._learn(key, schedule, fired, task, exec_options, rest, expires)
            filled = known.fill(fired) if isinstance(known, Template) else None
        except Exception as problem:  # noqa: BLE001 - the natural way meets it again, and tells
            logger.debug("the message of schedule %r is left to Celery's own path: %r", schedule.name, problem)
            return None
        return None if filled is None else (filled,)

    def refresh(self) -> None:
        """Look whether what templates rest on is as it was: configuration, routes, Celery's own code. Done at the
        first message of each second; receivers and tasks are looked at for each message."""
        self._refresh_at = time.monotonic() + _LOOKS_EVERY
        found = ground(self._app, self._hardening)
        if found != self._ground:
            self._ground = found
            self._templates.clear()

    def close(self) -> None:
        """Let go of the connection. The next message makes a new one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.release()
            except Exception as problem:  # noqa: BLE001 - it is of no use any more
                logger.debug("the connection of messages did not close in order: %r", problem)

    def client(self) -> Any:
        """A client of the Redis that messages would be pushed to, to be compared. Connects."""
        return self._open().channel._create_client()

    # --- the natural way ------------------------------------------------------------------------------

    def _open(self) -> Any:
        if self._producer is None:
            self._producer = self._app.amqp.Producer(capturing_connection(self._app), auto_declare=False)
        return self._producer

    # --- the template -----------------------------------------------------------------------------------

    def _is_small(self, fired: Fired) -> bool:
        """Does nothing of the arguments go to the payload store?"""
        if REFERENCE in fired.kwargs:
            return False
        settings = self._hardening.settings
        limit = settings.payload_max if settings.payload_store is None else settings.payload_threshold
        return surely_below((fired.args, fired.kwargs), limit)

    def _learn(
        self,
        key: tuple[str, bool, str],
        schedule: Schedule,
        fired: Fired,
        task: Any,
        exec_options: Any,
        rest: Mapping[str, Any],
        expires: Any,
    ) -> Template | None:
        """The template of such schedules as *schedule*, from a message that is made and not sent."""
        made: list[Outgoing] = []
        template = None
        if is_plain_task(task) and are_plain_options(rest) and is_plain_expiry(expires, fired.now):
            capture = Capture(fired.task_id, schedule.task, made.extend)
            with self._captured(capture):
                send(self._app, schedule, task_id=fired.task_id, fire=fired.fire, producer=self._open())
            if len(made) == 1 and not capture.expiring:
                with suppress(LookupError, TypeError, ValueError):  # it is of another form
                    template = template_of(
                        made[0],
                        fired,
                        app=self._app,
                        task=task,
                        exec_options=exec_options,
                        expires=expires,
                        has_name=key[1],
                    )
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        self._templates[key] = template
        return template

    @contextmanager
    def _captured(self, capture: Capture) -> Iterator[None]:
        token = capturing.set(capture)
        try:
            yield
        except (OperationalError, OSError, RedisError):
            self.close()  # whatever is left of it
            raise
        finally:
            capturing.reset(token)
