"""Results of tasks that are not sent yet: asked for, they say so, and do not wait for what cannot come.

Inside a transaction ``get()`` would wait for a message that is sent after it: for ever.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.result import AsyncResult

from celery_hardened.errors import NotSentError

if TYPE_CHECKING:
    from celery_hardened.pipeline.waiting import Hook

#: Publishes that wait, or were rolled back, and that this process remembers by their ids.
_MOST = 10_000


class Fate:
    """What became of one publish that waited for a commit."""

    __slots__ = ("hooks", "name", "problem", "sent", "task_id")

    def __init__(self, name: str, task_id: str) -> None:
        self.name = name
        self.task_id = task_id
        self.sent = False
        self.problem: Exception | None = None
        """Why it was not sent, though everything has committed."""
        self.hooks: set[weakref.ref[Hook]] = set()
        """Of the transactions that have not committed yet. One that is gone was rolled back."""

    def require_sent(self) -> None:
        """Refuse to wait for a task that is not sent.

        Raises:
            NotSentError: Its transaction has not committed yet, or was rolled back.
            PublishFailedError: It has committed, and the broker did not take the task.
            DuplicateTaskError: It has committed, and a task of the same key was on its way.
        """
        if self.problem is not None:
            raise self.problem
        if not self.sent:
            raise NotSentError(self.name, self.task_id, any(hook() is None for hook in self.hooks))


_fates: OrderedDict[str, Fate] = OrderedDict()
_lock = threading.Lock()


def remember(fate: Fate) -> None:
    """Let every result of this task in this process know its fate."""
    with _lock:
        _fates[fate.task_id] = fate
        while len(_fates) > _MOST:
            _fates.popitem(last=False)


def forget(task_id: str) -> None:
    """It is sent, or about to be: from now on its result can come, as any other's."""
    if _fates:  # nearly always empty
        with _lock:
            _fates.pop(task_id, None)


def tell_unsent(app: Celery) -> None:
    """Let results of *app*, groups' and those made of an id too, say that their tasks are not sent.

    Composed with the app's own classes of results.
    """
    for name in ("AsyncResult", "GroupResult", "ResultSet"):
        own = getattr(app, name)
        if issubclass(own, _Telling):
            continue
        app.__dict__[name] = type(name, (_Telling, own), {"__module__": own.__module__, "__doc__": own.__doc__})


class _Telling:
    """Above a class of results: what waits for tasks asks first whether they were sent."""

    def get(self, *args: Any, **options: Any) -> Any:
        _require_sent(self)
        return super().get(*args, **options)  # type: ignore[misc]

    wait = get

    def join(self, *args: Any, **options: Any) -> Any:
        _require_sent(self)
        return super().join(*args, **options)  # type: ignore[misc]

    def join_native(self, *args: Any, **options: Any) -> Any:
        _require_sent(self)
        return super().join_native(*args, **options)  # type: ignore[misc]

    def iter_native(self, *args: Any, **options: Any) -> Any:
        _require_sent(self)
        return super().iter_native(*args, **options)  # type: ignore[misc]


def _require_sent(result: Any) -> None:
    if _fates:  # nearly always empty
        for task_id in _awaited(result):
            fate = _fates.get(task_id)
            if fate is not None:
                fate.require_sent()


def _awaited(result: Any) -> Iterator[str]:
    """Ids of the tasks that have to end for *result*: its own, its members', those before it in its chain."""
    while result is not None:
        members = getattr(result, "results", None)
        if members is None:
            yield result.id
        else:
            for member in members:
                yield from _awaited(member)
        result = result.parent


class DeferredResult(AsyncResult):  # type: ignore[misc]
    """Result of a task that is sent after a commit. From then on it is like any other.

    ``id`` is known at once. With ``@deduplicate`` it becomes the id of the task that was first;
    in sets and dicts the result stays the one that it was.

    Pickled or copied it is a result of the app, which knows in this process whether its task is sent.
    """

    def __init__(self, fate: Fate, *, app: Celery, backend: Any, ignored: bool) -> None:
        self._fate = fate
        self._hash = hash(fate.task_id)
        super().__init__(fate.task_id, backend=backend, task_name=fate.name, app=app)
        self.ignored = ignored

    @property
    def id(self) -> str:
        return self._fate.task_id

    @id.setter
    def id(self, _: str) -> None:
        """Celery sets it when it makes the result."""

    @property
    def sent(self) -> bool:
        """Has the task been sent?"""
        return self._fate.sent

    def __hash__(self) -> int:
        return self._hash

    def get(self, *args: Any, **options: Any) -> Any:
        """As ``AsyncResult.get``. Raises as ``Fate.require_sent`` says, if it is not sent."""
        self._fate.require_sent()
        return super().get(*args, **options)

    wait = get

    def __reduce__(self) -> Any:
        return copy(self).__reduce__()

    def __copy__(self) -> AsyncResult:
        return self.app.AsyncResult(*self.__reduce_args__())
