"""Messages of schedules from a template: what Celery's path makes, without walking it again for each fire.

A template is one message of a task with one set of options, captured on the way of ``apply_async``, with gaps
for what differs between two fires. It is kept only if, filled in with what was captured, it is that message
again, byte for byte.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

from celery.utils.saferepr import saferepr
from kombu.serialization import dumps
from kombu.utils.json import dumps as kombu_json

from celery_hardened.beat.steps import Outgoing
from celery_hardened.marks import HEADER
from celery_hardened.pipeline.publish import FireMarks, shown_of

#: Options that differ from schedule to schedule, and are gaps.
VARYING = ("headers", "periodic_task_name")

#: Left out of a header by what is kept of it.
_SPLICED = '"{0}:extra": "{0}:extra"'

JSON = "application/json"

_encoded = json.encoder.encode_basestring_ascii


@dataclass(frozen=True, slots=True)
class Fired:
    """One fire, as a template takes it."""

    task_id: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: Mapping[str, Any]
    """Of its options, with beat's."""

    name: Any
    """Option ``periodic_task_name``, which django-celery-beat gives."""

    fire: FireMarks
    now: float


@dataclass(frozen=True, slots=True)
class Template:
    """The message of one task with one set of options."""

    task: Any
    """``None``: this process knows its name alone."""

    exec_options: Any
    key: str
    literals: tuple[str, ...]
    gaps: tuple[str, ...]
    """Names of what stands between two literals."""

    embed: Any
    """The third part of the body: no callbacks, no chain."""

    reserved: frozenset[str]
    """Celery's own headers, which an option must not name."""

    show: Callable[[Any, Any], tuple[str, str]]
    """``argsrepr`` and ``kwargsrepr`` of arguments."""

    expires: Callable[[float], tuple[str, str]]
    """Header and property of a message that is made at an instant, as JSON."""

    def fill(self, fired: Fired, **known: str) -> Outgoing | None:
        """The message of *fired*; ``None``: only Celery's path can make it.

        Args:
            known: JSON of gaps that are not filled anew.

        Raises:
            kombu.exceptions.EncodeError: The arguments or headers cannot be JSON.
        """
        headers = fired.headers
        if not self.reserved.isdisjoint(headers):
            return None
        args, kwargs = fired.args or (), fired.kwargs or {}
        shown_args, shown_kwargs = self.show(args, kwargs)
        body = dumps((args, kwargs, self.embed), "json")[2]
        header, expiration = self.expires(fired.now)
        values = {
            "id": _encoded(fired.task_id),
            "argsrepr": _encoded(shown_args),
            "kwargsrepr": _encoded(shown_kwargs),
            "body": f'"{b64encode(body.encode()).decode()}"',
            "tag": f'"{uuid4()}"',
            "hardened": json.dumps(fired.fire.header(fired.now)),
            "extra": kombu_json(headers)[1:-1] if len(headers) > 1 else _BEAT_ALONE,
            "expires": header,
            "expiration": expiration,
            "name": kombu_json(fired.name) if fired.name is not None else "null",
            **known,
        }
        text = [self.literals[0]]
        for gap, literal in zip(self.gaps, self.literals[1:], strict=True):
            text += (values[gap], literal)
        return Outgoing("LPUSH", self.key, "".join(text).encode())


_BEAT_ALONE = '"celery_beat_task": true'


def template_of(
    captured: Outgoing, fired: Fired, *, app: Any, task: Any, exec_options: Any, expires: Any, has_name: bool
) -> Template | None:
    """The template of what was *captured* for *fired*; ``None``: it is no message that one could be made of.

    Args:
        expires: What the options and the task say together.
        has_name: Do the options have ``periodic_task_name``?
    """
    message = json.loads(captured.payload)
    headers, properties = message["headers"], message["properties"]
    if captured.verb != "LPUSH" or properties.get("body_encoding") != "base64" or message["content-type"] != JSON:
        return None
    nonce = uuid4().hex
    known = {"tag": _encoded(properties["delivery_tag"])}
    now = headers[HEADER]["published"]
    own = [name for name in headers if name not in fired.headers and name != HEADER]
    gapped = {name: headers[name] for name in own}
    for name in ("id", "root_id"):
        if gapped.get(name) != fired.task_id:
            return None
        gapped[name] = f"{nonce}:id"
    for name in ("argsrepr", "kwargsrepr"):
        gapped[name] = f"{nonce}:{name}"
    if expires is not None:
        known.update(expires=_encoded(gapped["expires"]), expiration=_encoded(properties["expiration"]))
        gapped["expires"] = f"{nonce}:expires"
        properties["expiration"] = f"{nonce}:expiration"
    if has_name:
        properties["periodic_task_name"] = f"{nonce}:name"
    body = json.loads(b64decode(message["body"]))
    properties.update(correlation_id=f"{nonce}:id", delivery_tag=f"{nonce}:tag")
    message["headers"] = {**gapped, f"{nonce}:extra": f"{nonce}:extra", HEADER: f"{nonce}:hardened"}
    message["body"] = f"{nonce}:body"
    text = kombu_json(message).replace(_SPLICED.format(nonce), f'"{nonce}:extra"')
    literals = re.split(rf'"{nonce}:(\w+)"', text)
    template = Template(
        task=task,
        exec_options=exec_options,
        key=captured.key,
        literals=tuple(literals[::2]),
        gaps=tuple(literals[1::2]),
        embed=body[2],
        reserved=frozenset([*own, HEADER]),
        show=_showing(app, task),
        expires=_expiring(app, expires),
    )
    if template.fill(replace(fired, now=now), **known) != captured:
        return None
    return template if expires is None or _is_near(template.expires(now)[0], known["expires"]) else None


def _is_near(one: str, other: str) -> bool:
    """Do two messages that were made within a moment expire at the same time?"""
    apart = datetime.fromisoformat(json.loads(one)) - datetime.fromisoformat(json.loads(other))
    return abs(apart) < timedelta(seconds=10)


def _showing(app: Any, task: Any) -> Callable[[Any, Any], tuple[str, str]]:
    if getattr(task, "is_hardened", False):
        return lambda args, kwargs: (shown_of(task, args, kwargs), "{}")
    amqp, levels = app.amqp, app.conf.get("task_repr_maxlevels", 3)  # a setting from Celery 5.7 on
    most, most_named = amqp.argsrepr_maxsize, amqp.kwargsrepr_maxsize

    def show(args: Any, kwargs: Any) -> tuple[str, str]:
        return (
            saferepr(args, most, maxlevels=levels) if args else "()",
            saferepr(kwargs, most_named, maxlevels=levels) if kwargs else "{}",
        )

    return show


def _expiring(app: Any, expires: Any) -> Callable[[float], tuple[str, str]]:
    """How a message that is made at an instant says *expires*: in the app's zone, and in milliseconds from then."""
    zone = app.timezone
    if expires is None:
        return lambda _: ("", "")
    if isinstance(expires, datetime):
        header, at = _encoded(expires.isoformat()), expires.timestamp()
        return lambda now: (header, f'"{int((at - now) * 1000)}"')
    expiration = f'"{int(expires * 1000)}"'

    def counted(now: float) -> tuple[str, str]:
        # As Celery: the instant is rounded before the seconds are added.
        at = datetime.fromtimestamp(now, timezone.utc) + timedelta(seconds=expires)
        return _encoded(at.astimezone(zone).isoformat()), expiration

    return counted
