"""``self.checkpoint``: loops inside of loops."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_hardened import Hardening
from celery_hardened.checkpoint.record import Record
from tests.support.checkpoint_spy import SpiedStore, make
from tests.unit.conftest import MakeApp

Task: TypeAlias = Any


@pytest.fixture
def app(make_hardened: MakeApp) -> Celery:
    return make_hardened(hardened_retry_backoff=0.01, hardened_retry_floor=0.0, hardened_dead_letter_write_timeout=0.0)


@pytest.fixture
def store(app: Celery) -> SpiedStore:
    hardening = Hardening.expect(app)
    kept = hardening.effects.__dict__
    kept["checkpoints"] = kept["eager_checkpoints"] = spied = SpiedStore()
    return spied


def record(store: SpiedStore) -> Record:
    """The only one there is."""
    (kept,) = store._records.values()
    return Record.read(kept.state)


def test_an_inner_loop_has_one_name_for_all_rows(app: Celery, store: SpiedStore) -> None:
    """It begins anew in each row of the outer one, and where it was left in the row that comes again."""
    seen: list[str] = []

    def run(self: Task) -> str:
        for order in self.checkpoint.iterate("abc", every=0, name="orders"):
            for line in self.checkpoint.iterate(range(3), every=0, name="lines"):
                seen.append(f"{order}{line}")
                if seen[-1] == "b1" and seen.count("b1") == 1:
                    raise ConnectionError("once")
        return "done"

    assert make(app, run).apply().result == "done"
    assert seen == ["a0", "a1", "a2", "b0", "b1", "b1", "b2", "c0", "c1", "c2"]


def test_a_record_does_not_grow_with_the_rows(app: Celery, store: SpiedStore) -> None:
    """A thousand rows with a loop each: of what was begun in a row that is done, nothing is kept."""

    def run(self: Task) -> str:
        for order in self.checkpoint.iterate(range(1000), every=3600, name="orders"):
            for _ in self.checkpoint.iterate("ab", every=3600, name=f"lines of {order}"):
                pass
        return "done"

    assert make(app, run).apply().result == "done"
    assert record(store).loops == {"orders": 1000}


def test_a_loop_that_the_next_run_does_not_begin_is_forgotten(app: Celery, store: SpiedStore) -> None:
    """The row that comes again takes another way. The row after it must not go on where *that* loop was left."""
    seen: list[str] = []

    def run(self: Task) -> str:
        for order in self.checkpoint.iterate("ab", every=0, name="orders"):
            if order == "a" and len(seen) == 2:
                continue
            for line in self.checkpoint.iterate(range(3), every=0, name="lines"):
                if order == "a" and line == 2:
                    raise ConnectionError("once")
                seen.append(f"{order}{line}")
        return "done"

    assert make(app, run).apply().result == "done"
    assert seen == ["a0", "a1", "b0", "b1", "b2"]


def test_a_loop_that_follows_is_not_inside(app: Celery, store: SpiedStore) -> None:
    """What was done before stays done."""
    seen: list[str] = []

    def run(self: Task) -> str:
        for name in ("first", "second"):
            for outer in self.checkpoint.iterate("ab", every=0, name=name):
                for inner in self.checkpoint.iterate("xy", every=0, name="inner"):
                    seen.append(f"{name} {outer}{inner}")
        if len(seen) == 8:
            seen.append("failed")
            raise ConnectionError("once")
        return "done"

    assert make(app, run).apply().result == "done"
    units = [f"{name} {outer}{inner}" for name in ("first", "second") for outer in "ab" for inner in "xy"]
    assert [one for one in seen if one != "failed"] == units
    assert record(store).loops == {"first": 2, "second": 2}


def test_loops_side_by_side_are_not_inside_of_each_other(app: Celery, store: SpiedStore) -> None:
    seen: list[str] = []

    def run(self: Task) -> str:
        pairs = zip(
            self.checkpoint.iterate("abc", every=0, name="left"),
            self.checkpoint.iterate("xyz", every=0, name="right"),
            strict=False,
        )
        for left, right in pairs:
            for inner in self.checkpoint.iterate("12", every=0, name="inner"):
                seen.append(f"{left}{right}{inner}")
        return "done"

    assert make(app, run).apply().result == "done"
    assert seen == [left + right + inner for left, right in ("ax", "by", "cz") for inner in "12"]


def test_a_loop_does_not_outlive_its_row(app: Celery, store: SpiedStore) -> None:
    """Another of its name may have begun by then; noted under it, the rows of both would be mixed up."""

    def run(self: Task) -> None:
        kept: list[Any] = []
        for row in self.checkpoint.iterate("ab", every=0, name="orders"):
            kept.append(self.checkpoint.iterate("xyz", every=0, name="lines"))
            next(kept[-1])
            if row == "b":
                next(kept[0])

    failed = make(app, run).apply()
    assert isinstance(failed.result, ValueError)
    assert "'lines'" in str(failed.result)
    assert "is done" in str(failed.result)


def test_a_name_is_not_used_twice_in_a_row(app: Celery, store: SpiedStore) -> None:
    def run(self: Task, name: str) -> None:
        for _ in self.checkpoint.iterate("ab", name="orders"):
            list(self.checkpoint.iterate("xy", name="lines"))
            list(self.checkpoint.iterate("xy", name=name))

    job = make(app, run)
    for name in ("lines", "orders"):
        assert f"a loop named {name!r}" in str(job.apply([name]).result)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(failing=st.sets(st.integers(0, 26), max_size=8), every=st.sampled_from([0, 3600]))
def test_wherever_it_fails_each_row_is_done_once(
    app: Celery, store: SpiedStore, failing: set[int], every: float
) -> None:
    """Three loops deep: a unit that raised comes again, and no other one; and all of them come."""
    done: list[int] = []
    left = set(failing)

    def run(self: Task) -> str:
        for a in self.checkpoint.iterate(range(3), every=every, name="a"):
            for b in self.checkpoint.iterate(range(3), every=every, name="b"):
                for c in self.checkpoint.iterate(range(3), every=every, name="c"):
                    unit = 9 * a + 3 * b + c
                    if unit in left:
                        left.discard(unit)
                        raise ConnectionError("once")
                    done.append(unit)
        return "done"

    store._records.clear()
    app.tasks.pop("job", None)
    assert make(app, run, max_retries=20).apply().result == "done"
    assert done == list(range(27))
    assert record(store).loops == {"a": 3}
