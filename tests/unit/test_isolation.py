"""One suspect at a time, alone in its worker; everybody else in order, none lost, none twice."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.poison.isolation import Isolation


class Pool:
    """What a worker knows: requests taken on (waiting ones included) and those in the pool."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.started: list[str] = []
        self.beside: dict[str, set[str]] = {}
        self.given_back: list[str] = []
        self.now = 0.0
        self.isolation = Isolation(
            start=self.start, running=lambda: tuple(self.taken), give_back=self.give_back, clock=lambda: self.now
        )

    def start(self, request: str) -> None:
        assert request not in self.started, f"{request} was started twice"
        self.started.append(request)
        self.beside[request] = self.in_pool - {request}
        for other in self.beside[request]:
            self.beside[other].add(request)

    def give_back(self, request: str) -> None:
        self.given_back.append(request)
        self.taken.remove(request)

    @property
    def in_pool(self) -> set[str]:
        return {request for request in self.taken if request in self.started}

    def take(self, request: str, *, alone: bool = False) -> None:
        """As Celery does: first it counts as reserved, then it is handed on."""
        self.taken.append(request)
        self.isolation.admit(request, alone=alone)

    def finish(self, request: str) -> None:
        self.taken.remove(request)
        self.isolation.proceed()


def test_without_suspects_everything_starts_at_once() -> None:
    pool = Pool()
    for request in "abc":
        pool.take(request)
    assert pool.started == ["a", "b", "c"]
    assert not pool.isolation.active


def test_a_suspect_in_an_idle_worker_starts_at_once() -> None:
    """The request itself counts among those taken on."""
    pool = Pool()
    pool.take("S", alone=True)
    assert pool.started == ["S"]
    assert pool.isolation.active


def test_a_suspect_waits_until_the_worker_is_idle() -> None:
    """Then it has it to itself, while others wait; they go on in their order."""
    pool = Pool()
    pool.take("a")
    pool.take("b")
    pool.take("S", alone=True)
    pool.take("c")
    pool.take("d")
    assert pool.started == ["a", "b"]
    pool.finish("a")
    assert pool.started == ["a", "b"]
    pool.finish("b")
    assert pool.started == ["a", "b", "S"]
    pool.isolation.proceed()
    assert pool.started == ["a", "b", "S"]
    pool.finish("S")
    assert pool.started == ["a", "b", "S", "c", "d"]
    assert not pool.isolation.active


def test_two_suspects_run_one_after_the_other() -> None:
    pool = Pool()
    pool.take("S", alone=True)
    pool.take("T", alone=True)
    pool.take("a")
    assert pool.started == ["S"]
    pool.finish("S")
    assert pool.started == ["S", "T"]
    pool.finish("T")
    assert pool.started == ["S", "T", "a"]


def test_a_request_that_never_starts_does_not_block() -> None:
    """A suspect that is revoked or fails to start is gone from the worker; the next goes on."""
    pool = Pool()

    def start(request: str) -> None:
        pool.started.append(request)
        pool.taken.remove(request)

    pool.isolation = Isolation(start=start, running=lambda: tuple(pool.taken), give_back=pool.give_back)
    pool.take("S", alone=True)
    pool.take("a")
    pool.isolation.proceed()
    assert pool.started == ["S", "a"]
    assert not pool.isolation.active


def test_a_lost_connection_forgets_what_waits() -> None:
    """Its messages will be delivered again; started here as well, they would run twice."""
    pool = Pool()
    pool.take("a")
    pool.take("S", alone=True)
    pool.take("b")
    pool.isolation.forget()
    pool.taken = ["a"]
    assert not pool.isolation.active
    pool.isolation.proceed()
    assert pool.started == ["a"]
    pool.take("b")
    assert pool.started == ["a", "b"]


def test_equal_requests_are_still_two() -> None:
    """Requests are told apart by what they are, not by what they say."""

    class Request:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Request)

        __hash__ = None  # type: ignore[assignment]

    started: list[Any] = []
    taken: list[Any] = []
    isolation = Isolation(start=started.append, running=lambda: taken, give_back=started.append)
    first, second = Request(), Request()
    taken.append(first)
    isolation.admit(first, alone=False)
    taken.append(second)
    isolation.admit(second, alone=True)
    assert len(started) == 1, "the suspect did not wait for the other one"


steps = st.lists(st.one_of(st.tuples(st.just("take"), st.booleans()), st.tuples(st.just("finish"), st.integers(0, 9))))


@given(steps)
def test_any_order_of_arrivals_and_ends(order: list[tuple[str, int]]) -> None:
    """Everyone starts exactly once, in the order of arrival, and a suspect has nobody beside it."""
    pool = Pool()
    suspects = set()
    arrived = []
    for step, what in order:
        if step == "take":
            request = f"r{len(arrived)}"
            arrived.append(request)
            if what:
                suspects.add(request)
            pool.take(request, alone=bool(what))
        elif pool.in_pool:
            pool.finish(sorted(pool.in_pool)[what % len(pool.in_pool)])
    while pool.in_pool:
        pool.finish(min(pool.in_pool))
    assert pool.started == arrived
    assert all(not pool.beside[request] for request in suspects)
    assert not pool.isolation.active


def test_nobody_slips_in_while_a_suspect_is_being_started() -> None:
    """Another thread that takes a request on just then has to wait for the suspect."""
    pool = Pool()
    pool.take("a")
    pool.take("S", alone=True)
    late = threading.Thread(target=pool.take, args=("b",))

    class Interrupted(deque[Any]):
        def popleft(self) -> Any:
            found = super().popleft()
            if late.ident is None:
                late.start()
                late.join(0.2)  # as long as it likes; it cannot get through
            return found

    pool.isolation._waiting = Interrupted(pool.isolation._waiting)
    pool.finish("a")
    late.join()
    assert pool.started == ["a", "S"]
    pool.finish("S")
    assert pool.started == ["a", "S", "b"]
    assert pool.beside["S"] == set()


def test_threads() -> None:
    """Timers fire in another thread where the pool has no event loop: nothing starts twice."""
    pool = Pool()
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            pool.isolation.proceed()

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        for number in range(300):
            pool.take(f"r{number}", alone=number % 3 == 0)
            for request in pool.in_pool:
                pool.taken.remove(request)
    finally:
        stop.set()
        ticking.join()
    while pool.taken:
        for request in pool.in_pool:
            pool.taken.remove(request)
        pool.isolation.proceed()
    assert pool.started == [f"r{number}" for number in range(300)]


def test_a_worker_that_does_not_come_to_rest_gives_its_suspect_back() -> None:
    """One long task beside a suspect must not hold up all that arrives: after a while the others go on."""
    pool = Pool()
    pool.take("long")
    pool.take("S", alone=True)
    pool.take("a")
    pool.now = 29.0
    pool.isolation.proceed()
    assert (pool.started, pool.given_back) == (["long"], [])

    pool.now = 31.0
    pool.isolation.proceed()
    assert (pool.started, pool.given_back) == (["long", "a"], ["S"])
    assert not pool.isolation.active
