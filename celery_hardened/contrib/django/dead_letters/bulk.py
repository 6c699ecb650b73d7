"""A bulk action as it is asked for: its row, the message that makes a worker begin, and who may work on it.

Letters are named by a query whose ``until`` is the moment of the newest letter that was shown, so those that came
later are left alone. A message is only "see that this goes on". Any number of them may be about; whoever holds the row
works, and the others end.
"""

from __future__ import annotations

import json
import shlex
import uuid
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from celery import Celery
from django.db import router
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Coalesce, Now

from celery_hardened.cli import text
from celery_hardened.contrib.django.models import BulkAction, BulkActionLetter
from celery_hardened.dead_letter.contract import DeadLetterStore, Query

#: Name of the task that carries bulk actions out.
TASK: Final = "celery_hardened.bulk_action"

#: A worker that gave no sign of life for so long is taken for dead. Longer than a redrive waits for others' letters.
HOLD: Final = timedelta(seconds=60)

ENDED: Final = ("done", "stopped")

#: Some delivery holds it. Without a token ``held_until`` is the end of a pause, before which nobody is to go on.
WORKED_ON: Final = ~Q(token="") & Q(held_until__gt=Now())

#: How long it is kept which letters an action was about, and the action itself.
_LETTERS_KEPT: Final = timedelta(days=30)
_KEPT: Final = timedelta(days=365)


def alias() -> str:
    """The database in which bulk actions are."""
    return str(router.db_for_write(BulkAction))


def actions() -> QuerySet[BulkAction]:
    """All, each with ``held`` (does a worker that lives hold it?) and ``now``, by the database's clock."""
    held = ExpressionWrapper(WORKED_ON & Q(held_until__isnull=False), output_field=BooleanField())
    return BulkAction.objects.using(alias()).annotate(held=held, now=Now())


def until_newest(store: DeadLetterStore, query: Query) -> Query:
    """*query*, bounded by the newest letter that matches it now; letters that come later do not match."""
    newest = store.find(query, limit=1).letters
    return replace(query, until=newest[0].stored_at) if newest else query


def dumped(query: Query) -> str:
    """JSON of what *query* asks for."""
    said = {one.name: getattr(query, one.name) for one in fields(query)}
    return json.dumps({name: value for name, value in said.items() if value not in (None, ())})


def loaded(said: str) -> Query:
    fields_of = json.loads(said)
    return Query(**{**fields_of, "ids": tuple(fields_of.get("ids", ()))})


def ask(app: Celery, pk: int, *, task_id: str | None = None, countdown: float | None = None) -> None:
    """Publish the message that makes a worker go on with action *pk*.

    Raises:
        kombu.exceptions.OperationalError: The broker did not take it.
    """
    task_id = task_id or uuid.uuid4().hex
    # Its own root: what is counted against the message of one slice is not counted against the next.
    app.send_task(TASK, args=[pk], task_id=task_id, root_id=task_id, countdown=countdown, ignore_result=True)


def take(pk: int, *, task_id: str) -> BulkAction | None:
    """Hold action *pk* for the message *task_id*; ``None`` if it ended, pauses, or another message holds it.

    A message that comes a second time takes over at once: its first delivery is dead, or has lost its lease, and
    stops at its next write, because the token is not its own any more. Letters have leases of their own.
    """
    free = Q(held_until__isnull=True) | Q(held_until__lte=Now()) | (Q(holder=task_id) & ~Q(token=""))
    mine = BulkAction.objects.using(alias()).filter(free, pk=pk).exclude(state__in=ENDED)
    token = uuid.uuid4().hex
    taken = mine.update(
        holder=task_id, token=token, held_until=Now() + HOLD, started_at=Coalesce("started_at", Now())
    )  # fmt: skip
    return BulkAction.objects.using(alias()).filter(pk=pk, token=token).first() if taken else None


def pause_left(pk: int) -> float | None:
    """Seconds for which action *pk* pauses yet, by the database's clock; ``None`` if it does not."""
    found = actions().filter(pk=pk, token="").exclude(state__in=ENDED).first()
    if found is None or found.held_until is None:
        return None
    return max(0.0, float((found.held_until - found.now).total_seconds()))


def prune() -> None:
    """Forget what ended long ago."""
    rows = BulkAction.objects.using(alias())
    BulkActionLetter.objects.using(alias()).filter(action__ended_at__lt=Now() - _LETTERS_KEPT).delete()
    rows.filter(ended_at__lt=Now() - _KEPT).delete()


def command(what: str, query: Query, **options: Any) -> str:
    """What does the same on the command line."""
    words = ["celery", "-A", "<module>", "hardened", "dlq", what]
    given: dict[str, Any] = {
        "--task": query.task,
        "--queue": query.queue,
        "--reason": query.reason,
        "--error": query.error_type,
        "--fingerprint": query.fingerprint,
        "--state": query.state,
        "--since": None if query.since is None else text.date(query.since),
        # Exactly: letters are stored between seconds.
        "--until": None if query.until is None else datetime.fromtimestamp(query.until, timezone.utc).isoformat(),
    }
    chosen = [shlex.quote(one) for one in query.ids]
    chosen += [f"{name}={shlex.quote(value)}" for name, value in given.items() if value is not None]
    how = [f"--{name.replace('_', '-')}={value:g}" for name, value in options.items() if value is not None]
    return " ".join([*words, *(chosen or ["--all"]), *how, "--why='…'"])
