"""The command line in this process: a hardened app without any server, letters to put into it, and a way to call it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_hardened import DeadLetterStore, Hardening, harden
from celery_hardened.cli import hardened
from celery_hardened.dead_letter.letter import Attempt, DeadLetter

#: An argument that must not be seen unless asked for.
SECRET = "hunter2"


def make_app(**settings: Any) -> Celery:
    """A hardened app whose letters, messages and results live in this process."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    # kombu's in-memory broker is one for the whole process.
    app.conf.update(hardened_dead_letter_store="memory", task_default_queue=f"q-{uuid.uuid4()}", **settings)
    return harden(app)


def store_of(app: Celery) -> DeadLetterStore:
    hardening = Hardening.of(app)
    assert hardening is not None
    return hardening.dead_letters


def make_letter(number: int = 1, **changes: Any) -> DeadLetter:
    """A letter of ``shop.charge(number, card=SECRET)``, as a worker would have written it."""
    task_id = f"task-{number}"
    fields: dict[str, Any] = {
        "id": f"{task_id}-0-3",
        "reason": "exhausted",
        "task": "shop.charge",
        "task_id": task_id,
        "root_id": task_id,
        "queue": "payments",
        "routing_key": "payments",
        "body": json.dumps([[number], {"card": SECRET}, {"callbacks": None, "errbacks": None}]).encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {
            "task": "shop.charge",
            "id": task_id,
            "retries": 3,
            "argsrepr": f"({number},)",
            "kwargsrepr": f"{{'card': '{SECRET}'}}",
        },
        "properties": {"correlation_id": task_id, "priority": 3},
        "error_type": "TimeoutError",
        "error_message": "gateway did not answer",
        "traceback": "Traceback (most recent call last):\n  ...\nTimeoutError: gateway did not answer\n",
        "fingerprint": "f1",
        "attempts": (Attempt(1000.0, "w1@host", "TimeoutError"), Attempt(1010.0, "w2@host", "TimeoutError")),
        "attempt": 3,
        "first_published": 990.0,
        "first_failed": 1000.0,
        "last_failed": 1010.0,
        "worker": "w2@host",
        "version": "abc123",
        "log_args": {"order": number},
    }
    return DeadLetter(**{**fields, **changes})


def call(app: Celery, *args: str, stdin: str | bytes = "", env: Mapping[str, str | None] | None = None) -> Result:
    """Run ``celery -A … hardened ARGS``; nothing here is a terminal."""
    context = CLIContext(app=app, no_color=False, workdir=None)
    return CliRunner().invoke(hardened, list(args), obj=context, input=stdin, env=env)


def answers(result: Result) -> list[Any]:
    """The JSON objects a command printed, one a line."""
    return [json.loads(line) for line in result.stdout.splitlines()]
