"""The proof that a task may be started twice and its work is done once."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from celery.utils import uuid
from kombu.utils.json import dumps, loads

from celery_hardened.idempotency.contract import Answer, ClaimStore, Done, Won
from celery_hardened.idempotency.decorator import options_of
from celery_hardened.idempotency.memory import InMemoryClaimStore
from celery_hardened.idempotency.policy import Idempotent
from celery_hardened.testing.inline import inline


def assert_idempotent(task: Any, /, *args: Any, effects: Callable[[], Any] | None = None, **kwargs: Any) -> None:
    """Run *task* with these arguments three times, and see whether its work was done once.

    1. It is killed after its body, before its key says that it is done.
    2. Its message comes back, the lease has run out, and the body runs again.
    3. A duplicate, a message of its own, gets the result and runs nothing.

    Tasks that it publishes run inside it, with the stores that they have in ``inline``; none of them is killed.

    Args:
        task: Has ``@idempotent``.
        effects: What the task has done so far, as a plain value: a count of rows, a list of mails. Asked before
            the first run and after each; it has to change once. Without it only results are compared.

    Raises:
        AssertionError: One of these is not so. What the task itself raises comes out as it is.
        TypeError: The task has no ``@idempotent``.
    """
    options = options_of(task)
    if options is None:
        raise TypeError(f"task {task.name!r} has no @idempotent")
    seen = _Effects(effects)
    with inline(task.app) as inside:
        stores = inside.hardening.effects
        moved = _Clock()
        claims: ClaimStore = InMemoryClaimStore(clock=moved)
        if options.store == "database":
            claims = stores.database_claims(options.using)
        dying = _DyingStore(claims, rolls_back=options.store == "database")
        usual = stores.claims_for

        def claims_for(policy: Idempotent, *, eager: bool = False) -> ClaimStore:
            # What the task publishes runs inside it, and is neither killed nor asked about.
            return dying if policy is options else usual(policy, eager=eager)

        stores.__dict__["claims_for"] = claims_for

        message = uuid()
        before = seen.now()
        dying.dies = True
        try:
            task.apply_async(args, kwargs, task_id=message)
        except KeyboardInterrupt as kill:
            if kill is not dying.kill:
                raise
        else:
            _hold(
                not isinstance(dying.answer, Done),
                f"the key of {task.name} was done before this call, so nothing ran. Begin with work that was not done "
                f"yet, in a database without its mark.",
            )
            _hold(False, f"{task.name} ended without a success, so nothing can be said of its effect")
        killed = seen.now()

        moved.by += inside.hardening.settings.lease + 1.0
        dying.dies = False
        result = task.apply_async(args, kwargs, task_id=message).get()
        _hold(isinstance(dying.answer, Won), f"{task.name} did not run again after it was killed: {dying.answer}")
        again = seen.now()
        _hold(
            killed in (before, again),  # before: a database has undone it
            f"{task.name} was killed after its effect and ran again, and that changed effects() from {killed!r} to "
            f"{again!r}. Pass self.execution.key on to what has the effect, write so that a second write changes "
            f"nothing, or, if it is in your database, use store='database'.",
        )
        _hold(
            effects is None or again != before,
            f"effects() is {again!r} before {task.name} and after it, so it does not show what the task does. Ask for "
            f"something the task changes, and begin with work that was not done yet.",
        )

        replayed = task.apply_async(args, kwargs, task_id=uuid()).get()
        _hold(isinstance(dying.answer, Done), f"a duplicate of {task.name} ran: {dying.answer}")
        _hold(replayed == loads(dumps(result)), f"a duplicate of {task.name} got {replayed!r} instead of {result!r}")
        _hold(seen.now() == again, f"a duplicate of {task.name} changed effects() from {again!r} to {seen.now()!r}")


def _hold(fact: bool, otherwise: str) -> None:
    # A statement would be gone under python -O.
    if not fact:
        raise AssertionError(otherwise)


class _Effects:
    def __init__(self, ask: Callable[[], Any] | None) -> None:
        self._ask = ask

    def now(self) -> Any:
        # A copy: the same list before and after would always be equal to itself.
        return deepcopy(self._ask()) if self._ask is not None else None


class _Clock:
    """The time, and what it was moved by."""

    by = 0.0

    def __call__(self) -> float:
        return time.time() + self.by


class _DyingStore:
    """A store of claims whose process is killed in the moment in which a run is to be marked as done."""

    def __init__(self, store: ClaimStore, *, rolls_back: bool) -> None:
        self._store = store
        self._rolls_back = rolls_back
        self.kill = KeyboardInterrupt("killed by assert_idempotent")
        self.dies = False
        self.answer: Answer | None = None
        """What the last claim was answered."""

    def claim(self, key: str, **options: Any) -> Answer:
        self.answer = self._store.claim(key, **options)
        return self.answer

    def renew(self, key: str, **options: Any) -> bool:
        return self._store.renew(key, **options)

    def finish(self, key: str, *, owner: str, result: bytes | None, lifetime: float) -> bool:
        if self.dies:
            if self._rolls_back:
                self._store.release(key, owner=owner)  # as the database does when its connection is gone
            raise self.kill
        return self._store.finish(key, owner=owner, result=result, lifetime=lifetime)

    def release(self, key: str, *, owner: str) -> bool:
        return self._store.release(key, owner=owner)

    @property
    def session(self) -> Any:
        return self._store.session  # type: ignore[attr-defined] # what a body asks of the database store
