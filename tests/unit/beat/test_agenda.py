"""When each schedule is to be looked at next."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from celery_hardened.beat.agenda import Agenda

names = st.sampled_from([f"schedule-{n}" for n in range(12)])
instants = st.integers(0, 30).map(float)


def test_it_hands_out_what_is_due_in_order() -> None:
    """At most as many as asked for, the earliest first; the rest stays."""
    agenda = Agenda()
    for name, due in (("c", 3.0), ("a", 1.0), ("d", 4.0), ("b", 2.0)):
        agenda.put(name, due)
    assert agenda.due(0.9, 10) == []
    assert agenda.due(3.0, 2) == ["a", "b"]
    assert (agenda.next(), len(agenda)) == (3.0, 2)
    assert agenda.due(3.0, 2) == ["c"]
    assert agenda.due(9.0, 0) == []


def test_only_the_last_word_on_a_name_counts() -> None:
    """Moved later, it does not come at the earlier instant; moved to never or dropped, not at all."""
    agenda = Agenda()
    agenda.put("a", 1.0)
    agenda.put("a", 5.0)
    assert agenda.due(4.0, 10) == []
    assert agenda.next() == 5.0
    agenda.put("a", None)
    agenda.put("b", 1.0)
    agenda.drop("b")
    agenda.drop("was never there")
    assert (agenda.due(9.0, 10), agenda.next(), len(agenda)) == ([], None, 0)


def test_a_name_taken_out_comes_again_only_if_put_back() -> None:
    """Also where the heap still has an older entry for the very same instant."""
    agenda = Agenda()
    agenda.put("a", 1.0)
    agenda.put("a", 2.0)
    agenda.put("a", 1.0)
    assert agenda.due(9.0, 10) == ["a"]
    assert agenda.due(9.0, 10) == []
    agenda.put("a", 1.0)
    assert agenda.due(9.0, 10) == ["a"]


def test_an_instant_is_a_number() -> None:
    """NaN has no place in any order: it would break the heap for all."""
    agenda = Agenda()
    with pytest.raises(ValueError, match="NaN"):
        agenda.put("a", math.nan)
    assert len(agenda) == 0


class Model(RuleBasedStateMachine):
    """The agenda beside a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.agenda = Agenda()
        self.model: dict[str, float] = {}

    @rule(name=names, due=st.none() | instants)
    def put(self, name: str, due: float | None) -> None:
        self.agenda.put(name, due)
        self.model.pop(name, None)
        if due is not None:
            self.model[name] = due

    @rule(name=names)
    def drop(self, name: str) -> None:
        self.agenda.drop(name)
        self.model.pop(name, None)

    @rule(now=instants, most=st.integers(0, 5))
    def take(self, now: float, most: int) -> None:
        expected = sorted((due, name) for name, due in self.model.items() if due <= now)[:most]
        assert self.agenda.due(now, most) == [name for _, name in expected]
        for _, name in expected:
            del self.model[name]

    @invariant()
    def agrees(self) -> None:
        assert len(self.agenda) == len(self.model)
        assert self.agenda.next() == min(self.model.values(), default=None)


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAgenda = Model.TestCase


def test_outdated_entries_do_not_pile_up() -> None:
    """Ten schedules moved 100,000 times, and 10,000 dropped, leave a heap of a hundred entries."""
    agenda = Agenda()
    for turn in range(100_000):
        agenda.put(f"schedule-{turn % 10}", 1e9 - turn)
    assert len(agenda._heap) < 100
    for n in range(10_000):
        agenda.put(f"other-{n}", float(n))
    for n in range(10_000):
        agenda.drop(f"other-{n}")
    assert len(agenda) == 10
    assert len(agenda._heap) < 100
    assert agenda.next() == 1e9 - 99_999


def test_a_hundred_thousand_schedules_take_little_memory() -> None:
    """Within 30 MB, their names apart, which the schedules have anyway."""
    known = [f"schedule-{n}" for n in range(100_000)]
    tracemalloc.start()
    try:
        agenda = Agenda()
        for n, name in enumerate(known):
            agenda.put(name, 1e9 + n * 7919 % 100_003)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(agenda) == 100_000
    assert used < 30_000_000
