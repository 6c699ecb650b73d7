"""Whether a main loop lives, judged by a clock that the test turns."""

from __future__ import annotations

from celery_hardened.beat.leader_stall import Stall


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(exit_after: float | None = 60.0) -> tuple[Clock, Stall]:
    clock = Clock()
    return clock, Stall(clock, after=10.0, exit_after=exit_after, step=5.0)


def pass_time(clock: Clock, stall: Stall, seconds: float, step: float = 0.5) -> bool:
    stalled = False
    for _ in range(round(seconds / step)):
        clock.now += step
        stalled = stall.look()
    return stalled


def test_a_loop_that_is_touched_is_not_stalled() -> None:
    """However long it goes on; and it is idle only since the last touch."""
    clock, stall = make()
    for _ in range(50):
        assert not pass_time(clock, stall, 9)
        assert stall.touch() is False
    clock.now += 1.5
    assert stall.idle() == 1.5


def test_silence_is_a_stall_and_then_the_end() -> None:
    """After ten seconds it is stalled, after sixty nothing is hoped for."""
    clock, stall = make()
    assert not pass_time(clock, stall, 10)
    assert pass_time(clock, stall, 0.5)
    assert not stall.is_over
    pass_time(clock, stall, 49.5)
    assert not stall.is_over
    pass_time(clock, stall, 0.5)
    assert stall.is_over
    assert stall.silent == 60.5


def test_the_next_touch_ends_a_stall_and_is_told_so_once() -> None:
    """The one who touches learns that it was taken for dead."""
    clock, stall = make()
    pass_time(clock, stall, 20)
    assert stall.touch() is True
    assert stall.touch() is False
    assert not pass_time(clock, stall, 0.5)
    assert stall.silent == 0.0


def test_a_stopped_process_is_not_stalled() -> None:
    """The looking thread stood still too: of an hour between two looks five seconds count."""
    clock, stall = make()
    pass_time(clock, stall, 4)
    clock.now += 3600
    assert not stall.look()
    assert stall.silent == 9.0
    assert stall.idle() == 3604.0


def test_without_a_limit_there_is_always_hope() -> None:
    """``exit_after=None``: a silence of any length is no end."""
    clock, stall = make(exit_after=None)
    pass_time(clock, stall, 500)
    assert not stall.is_over
