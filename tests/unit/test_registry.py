"""Plain numbers: what they add up to, and how many series there can be."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.metrics.catalogue import TASK_EXCEPTIONS, TASK_SECONDS, TASK_WAIT_SECONDS, TASKS, WORKER_ACTIVE
from celery_hardened.metrics.family import OTHER
from celery_hardened.metrics.registry import EXCEPTIONS_PER_TASK, Registry

NAMES = st.sampled_from([f"t{number}" for number in range(12)])


@given(st.lists(st.tuples(NAMES, st.sampled_from(["q", "r"]), st.integers(0, 5))), st.integers(1, 6))
def test_nothing_is_lost_beyond_the_cap(counts: list[tuple[str, str, int]], cap: int) -> None:
    """The sum is whole; each of the first values has its own; the others are ``other``, and counted as folded."""
    registry = Registry({"task": cap})
    first: list[str] = []
    expected: Counter[tuple[str, ...]] = Counter()
    folded = 0
    for task, queue, by in counts:
        if task not in first and len(first) < cap:
            first.append(task)
        shown = task if task in first else OTHER
        folded += shown == OTHER
        expected[shown, queue, "success"] += by
        registry.inc(TASKS, (task, queue, "success"), by)
    found = registry.values(TASKS)
    assert found == dict(expected)
    assert len({task for task, _, _ in found}) <= cap + 1
    assert registry.folded["task"] == folded


@given(st.lists(st.floats(0, 1e6)))
def test_each_value_is_in_one_bucket(values: list[float]) -> None:
    """The first whose bound is not below it; the sum is theirs."""
    registry = Registry()
    for value in values:
        registry.observe(TASK_WAIT_SECONDS, ("q",), value)
    cells = registry.snapshot()[1].get(TASK_WAIT_SECONDS, {}).get(("q",), [0.0])
    assert sum(cells[:-1]) == len(values) == registry.value(TASK_WAIT_SECONDS, ("q",))
    assert cells[-1] == pytest.approx(sum(values))
    for number, bound in enumerate(TASK_WAIT_SECONDS.buckets, start=1):
        assert sum(cells[:number]) == sum(1 for value in values if value <= bound)


def test_classes_of_exceptions_are_capped_by_task() -> None:
    """One task that makes up classes leaves the others theirs."""
    registry = Registry()
    for number in range(EXCEPTIONS_PER_TASK + 5):
        registry.inc(TASK_EXCEPTIONS, ("wild", f"E{number}"))
    registry.inc(TASK_EXCEPTIONS, ("tame", "ValueError"))
    assert registry.value(TASK_EXCEPTIONS, ("wild", OTHER)) == 5
    assert registry.value(TASK_EXCEPTIONS, ("tame", "ValueError")) == 1


def test_tasks_beyond_the_cap_share_one_tasks_classes() -> None:
    """What is shown as one task has as many classes as one: names that messages make up cannot fill the page."""
    registry = Registry({"task": 1})
    registry.inc(TASK_EXCEPTIONS, ("first", "ValueError"))
    for number in range(EXCEPTIONS_PER_TASK + 5):
        registry.inc(TASK_EXCEPTIONS, (f"t{number}", f"E{number}"))
    assert len(registry.values(TASK_EXCEPTIONS)) == 1 + EXCEPTIONS_PER_TASK + 1
    assert registry.value(TASK_EXCEPTIONS, (OTHER, OTHER)) == 5
    assert registry.value(TASK_EXCEPTIONS, ("first", "ValueError")) == 1


def test_known_tasks_come_before_what_messages_make_up() -> None:
    """Zeros at the start take their place in the cap."""
    registry = Registry({"task": 2})
    registry.zero(TASKS, [("mine", "q", "success"), ("other.mine", "q", "success")])
    for number in range(50):
        registry.inc(TASKS, (f"made.up.{number}", "q", "unknown"))
    registry.inc(TASKS, ("mine", "q", "success"))
    assert registry.value(TASKS, ("mine", "q", "success")) == 1
    assert registry.value(TASKS, (OTHER, "q", "unknown")) == 50
    assert len(registry.values(TASKS)) == 3


def test_what_is_not_there_any_more_is_not_shown() -> None:
    """A gauge of all series at once; two that fold are added, or as asked."""
    registry = Registry({"queue": 1})
    registry.replace(WORKER_ACTIVE, {("a",): 1.0, ("b",): 2.0, ("c",): 5.0})
    assert registry.values(WORKER_ACTIVE) == {("a",): 1.0, (OTHER,): 7.0}
    registry.replace(WORKER_ACTIVE, {("b",): 2.0, ("c",): 5.0}, fold=max)
    assert registry.values(WORKER_ACTIVE) == {(OTHER,): 5.0}


def test_threads_lose_no_count() -> None:
    """Eight of them, on the same and on new series, while one looks."""
    registry = Registry()
    go = threading.Barrier(9)

    def count(number: int) -> None:
        go.wait()
        for step in range(3000):
            registry.inc(TASKS, ("t", "q", "success"))
            registry.observe(TASK_SECONDS, (f"t{step % 50}-{number}", "ok"), 0.5)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    go.wait()
    while any(thread.is_alive() for thread in threads):
        registry.snapshot()
    assert registry.value(TASKS, ("t", "q", "success")) == 24_000
    assert sum(sum(cells[:-1]) for cells in registry.snapshot()[1][TASK_SECONDS].values()) == 24_000


def test_a_signal_handler_may_count() -> None:
    """Also while its own thread does: it would wait for itself for ever."""
    registry = Registry()
    registry.inc(TASKS, ("t", "q", "success"))

    def handler(*_: object) -> None:
        registry.inc(TASKS, ("t", "q", "retry"))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with registry._lock:
            os.kill(os.getpid(), signal.SIGUSR1)
            registry.inc(TASKS, ("t", "q", "success"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert registry.value(TASKS, ("t", "q", "retry")) == 1


def test_a_fork_amid_a_count_does_not_stop_the_child() -> None:
    """The thread that holds the lock is not there in the child."""
    registry = Registry()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with registry._lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        try:
            registry.after_fork()
            registry.inc(TASKS, ("t", "q", "success"))
            os._exit(0)
        finally:
            os._exit(1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
