"""Publish on commit against a model: any nesting of transactions and savepoints on two databases."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.django_shop.models import Invoice
from tests.support.queued import take_queued

PUBLISH = "publish"


@dataclass(frozen=True)
class Block:
    """An ``atomic()`` block, and whether it is rolled back at its end."""

    using: str
    fails: bool
    steps: tuple[Any, ...] = ()


def blocks(steps: st.SearchStrategy[Any]) -> st.SearchStrategy[Block]:
    return st.builds(
        Block, st.sampled_from(["default", "other"]), st.booleans(), st.lists(steps, max_size=4).map(tuple)
    )


PROGRAMS = st.lists(st.recursive(st.just(PUBLISH), blocks, max_leaves=12), min_size=1, max_size=4)


class Rollback(Exception):  # noqa: N818 - it is no error
    """Ends a block that is to fail."""


@dataclass
class Run:
    """One program, and what has to become of its publishes."""

    charge: Any
    open: list[tuple[int, Block]] = field(default_factory=list)
    inside: dict[str, list[tuple[int, Block]]] = field(default_factory=dict)
    numbers: Any = field(default_factory=itertools.count)
    too_soon: list[str] = field(default_factory=list)

    def step(self, step: Any) -> None:
        if step == PUBLISH:
            # Known before it is sent, which may be at once.
            task_id = f"t{next(self.numbers)}"
            self.inside[task_id] = list(self.open)
            self.charge.apply_async((1,), task_id=task_id)
            return
        one = (next(self.numbers), step)
        try:
            with transaction.atomic(using=step.using):
                self.open.append(one)
                Invoice.objects.using(step.using).create(number="1")
                try:
                    for inner in step.steps:
                        self.step(inner)
                finally:
                    self.open.pop()
                if step.fails:
                    raise Rollback
        except Rollback:
            pass

    def sent(self, task_id: str) -> None:
        if set(self.open) & set(self.inside[task_id]):
            self.too_soon.append(task_id)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(program=PROGRAMS)
def test_what_is_sent_is_what_has_committed(app: Celery, charge: Any, program: list[Any]) -> None:
    """A publish is sent, once, if and only if every block around it has committed, and not before the last of them."""
    run = Run(charge)
    sender = app.amqp.send_task_message

    def watch(producer: Any, name: str, message: Any, **options: Any) -> Any:
        run.sent(message.headers["id"])
        return sender(producer, name, message, **options)

    app.amqp.__dict__["send_task_message"] = watch
    try:
        for step in program:
            run.step(step)
    finally:
        app.amqp.__dict__["send_task_message"] = sender
    ids = [message.headers["id"] for message in take_queued(app)]
    wanted = [task_id for task_id, around in run.inside.items() if not any(block.fails for _, block in around)]
    assert sorted(ids) == sorted(wanted)
    assert run.too_soon == []
