"""Cancelled entries leave a hub's timer before they are due, and nothing else does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from kombu.asynchronous.timer import Timer

from celery_hardened.pipeline.ended_timers import MOST, WANTED, sweep


def noted(calls: list[int], number: int) -> Callable[[], None]:
    return lambda: calls.append(number)


def test_what_is_cancelled_goes_and_the_rest_is_called_in_its_order() -> None:
    """Of a thousand time limits those of running tasks are left, each due when it was."""
    timer, called = Timer(), list[int]()
    entries = [timer.call_after(number / 1e6, noted(called, number)) for number in range(1000)]
    for number, entry in enumerate(entries):
        if number % 50:
            entry.cancel()
    del entry
    assert sweep(timer) == 980
    assert len(timer) == 20
    due = iter(timer)
    while len(called) < 20:
        _, next_one = next(due)
        if next_one is not None:
            next_one()
    assert called == [*range(0, 1000, 50)]


def test_one_look_is_bounded() -> None:
    """It takes up so many at most, and ends where the first hundred are wanted: tasks that wait for their time."""
    timer = Timer()
    for _ in range(MOST + 10):
        timer.call_after(60, print).cancel()
    assert (sweep(timer), sweep(timer), len(timer)) == (MOST, 10, 0)
    for _ in range(WANTED):
        timer.call_after(10, print)
    timer.call_after(60, print).cancel()
    assert (sweep(timer), len(timer)) == (0, WANTED + 1)


def test_what_another_thread_sets_meanwhile_is_kept() -> None:
    """A look loses no entry that another thread sets between any two of its steps."""
    timer, done = Timer(), threading.Event()

    def sets() -> None:
        for _ in range(20_000):
            timer.call_after(60, print)
        done.set()

    thread = threading.Thread(target=sets)
    thread.start()
    while not done.is_set():
        sweep(timer)
    thread.join()
    assert len(timer) == 20_000


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_interrupts_a_look_loses_nothing(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may come between two steps."""
    timer = Timer()
    for _ in range(5):
        timer.call_after(60, print)
    pop = __import__("heapq").heappop
    taken = list[object]()

    def interrupted(queue: list[object]) -> object:
        if len(taken) == 3:
            raise error
        taken.append(pop(queue))
        return taken[-1]

    monkeypatch.setattr("celery_hardened.pipeline.ended_timers.heapq.heappop", interrupted)
    with pytest.raises(error):
        sweep(timer)
    assert len(timer) == 5
