"""A wall clock made steady."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.beat.clock import FAR_AHEAD, SteadyClock

EPOCH = 1_764_547_200.0


@dataclass
class Machine:
    """A wall clock that is set, and one that runs."""

    wall: float = EPOCH
    monotonic: float = 0.0

    def run(self, seconds: float, *, rate: float = 1.0) -> None:
        self.monotonic += seconds
        self.wall += seconds * rate

    def steady(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall, lambda: self.monotonic)


def test_it_is_the_wall_clock() -> None:
    """As long as that one goes on, also a little slow or fast as when a time server draws it."""
    machine = Machine()
    clock = machine.steady()
    for rate in (1.0, 0.9995, 1.0005, 0.51):
        machine.run(100.0, rate=rate)
        assert clock.now() == machine.wall
        assert clock.set_back == 0.0


def test_a_step_forward_is_followed_at_once() -> None:
    """Slots in between were missed, and their policy decides."""
    machine = Machine()
    clock = machine.steady()
    machine.wall += 3600.0
    assert clock.now() == EPOCH + 3600.0


@given(st.floats(0.1, FAR_AHEAD), st.integers(1, 50))
def test_a_step_back_is_over_after_twice_its_length(back: float, looks: int) -> None:
    """Meanwhile it goes on at half speed: no slot comes again, and the next is not waited for for ever."""
    machine = Machine()
    clock = machine.steady()
    machine.wall -= back
    for look in range(1, looks + 1):
        machine.run(2 * back / looks)
        assert clock.now() == pytest.approx(EPOCH + back * look / looks, abs=1e-3)
        assert clock.set_back == pytest.approx(back * (1 - look / looks), abs=1e-3)
    machine.run(1.0)
    assert clock.now() == machine.wall
    assert clock.set_back == 0.0
    assert clock.times_brought_back == 0


steps = st.lists(st.tuples(st.floats(0, 5000), st.floats(-FAR_AHEAD / 40, FAR_AHEAD / 40)), max_size=40)


@given(steps)
def test_it_never_goes_back(taken: list[tuple[float, float]]) -> None:
    """However the wall clock is set, it moves by half the time that goes by at least, and is never behind the wall."""
    machine = Machine()
    clock = machine.steady()
    before = clock.now()
    for seconds, jump in taken:
        machine.run(seconds)
        machine.wall += jump
        now = clock.now()
        assert now >= before + seconds / 2 - 1e-6
        assert now == machine.wall or now == pytest.approx(before + seconds / 2, abs=1e-6)
        assert now >= machine.wall
        before = now


def test_a_date_that_was_wrong_is_followed_back() -> None:
    """More than a day ahead it would be wrong for years: it goes back once, and says that it did."""
    machine = Machine(wall=EPOCH + 3650 * FAR_AHEAD)
    clock = machine.steady()
    machine.wall = EPOCH
    assert clock.now() == EPOCH
    assert clock.times_brought_back == 1
    machine.run(1.0)
    assert clock.now() == EPOCH + 1
    assert clock.times_brought_back == 1


def test_it_starts_no_earlier_than_what_another_has_shown() -> None:
    """A leader that takes over on a machine that is behind decides no slot of its own past again."""
    machine = Machine()
    clock = machine.steady()
    assert clock.start_at_least(EPOCH - 5)
    assert clock.now() == EPOCH
    assert clock.start_at_least(EPOCH + 60)
    assert (clock.now(), clock.set_back) == (EPOCH + 60, 60.0)
    machine.run(60.0)
    assert clock.now() == EPOCH + 90
    machine.run(60.0)
    assert clock.now() == EPOCH + 120 == machine.wall


@pytest.mark.parametrize("mark", [EPOCH + FAR_AHEAD + 1, float("inf"), float("nan")])
def test_a_mark_far_ahead_is_not_obeyed(mark: float) -> None:
    """It was written by a clock that was wrong."""
    clock = Machine().steady()
    assert not clock.start_at_least(mark)
    assert clock.now() == EPOCH


def test_two_readers_see_one_clock() -> None:
    """Both clocks are read at one go, so none of two readers takes a reading back that the other has shown."""
    machine = Machine()
    between: list[int] = []
    mixed: list[list[int]] = []

    def wall() -> float:
        between.append(threading.get_ident())
        time.sleep(0)  # the other one's turn
        return machine.wall

    def monotonic() -> float:
        if between != [threading.get_ident()]:
            mixed.append(list(between))
        between.clear()
        return machine.monotonic

    between.append(threading.get_ident())
    clock = SteadyClock(wall, monotonic)
    between.clear()
    seen: list[list[float]] = [[], []]
    start = threading.Barrier(3)

    def read(into: list[float]) -> None:
        start.wait(30)
        for _ in range(1000):
            into.append(clock.now())
            clock.start_at_least(machine.wall + clock.set_back)

    readers = [threading.Thread(target=read, args=(into,)) for into in seen]
    for reader in readers:
        reader.start()
    start.wait(30)
    for turn in range(1000):
        machine.monotonic += 0.01
        machine.wall += 5.0 if turn % 2 else -4.0
    for reader in readers:
        reader.join(60)
    assert mixed == []
    assert all(into == sorted(into) and len(into) == 1000 for into in seen)
