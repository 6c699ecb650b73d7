"""The look at the loop from outside: what is cut, when the process gives up, and what is left alone."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from celery_hardened import StoreUnavailableError
from celery_hardened.transport import watch as module
from celery_hardened.transport.policy import GIVE_UP, STALLED
from celery_hardened.transport.watch import GAVE_UP, Watch


class Ended(BaseException):
    """The process did."""


class FakeSocket:
    """*gone*: its other end closed it before."""

    def __init__(self, *, gone: bool = False) -> None:
        self.gone = gone
        self.cuts = 0

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_RDWR
        if self.gone:
            raise OSError(107, "not connected")
        self.cuts += 1


class FakeChannel:
    """A channel whose loop never comes round: nothing but the watch says that it was answered."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self._clock = clock
        self._answered = clock.time
        self.closed = False
        self.active_queues = ["q"]
        self.waits = 5
        self.free = 1
        self.links = [FakeSocket(), FakeSocket()]

    @property
    def idle(self) -> float:
        return float(self._clock.time - self._answered)

    def answered(self) -> None:
        self._answered = self._clock.time

    def lists(self, queues: tuple[str, ...]) -> tuple[list[str], list[str | int]]:
        return list(queues), []

    def credit(self) -> int:
        return self.free

    def sockets(self) -> list[FakeSocket]:
        return self.links

    @property
    def cuts(self) -> list[int]:
        return [link.cuts for link in self.links]


class Watched:
    """A watch and what it looks at; it looks once a second."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self.clock = clock
        self.channels = [FakeChannel(clock)]
        self.silence = 0.0
        self.works = False
        self.away = False
        self.closed = 0
        self.watch = Watch(
            lambda: self.channels,  # type: ignore[arg-type,return-value]
            SimpleNamespace(scripts=SimpleNamespace(length=self._length), close=self._close),  # type: ignore[arg-type]
            silence=lambda: self.silence,
            busy=lambda: self.works,
        )

    @property
    def channel(self) -> FakeChannel:
        return self.channels[0]

    def _length(self, lists: list[str]) -> int:
        if self.away:
            raise StoreUnavailableError("measuring a queue", "away")
        return self.channel.waits if lists else 0

    def _close(self) -> None:
        self.closed += 1

    def looks(self, seconds: float) -> None:
        """As many looks, a second apart."""
        for _ in range(int(seconds)):
            self.clock.time += 1.0
            self.watch.look()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    def end(code: int) -> None:
        raise Ended(code)

    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.time))
    monkeypatch.setattr(module, "os", SimpleNamespace(_exit=end))
    return now


@pytest.fixture
def watched(clock: SimpleNamespace) -> Watched:
    return Watched(clock)


def test_a_stuck_channel_is_cut(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Ten seconds without an answer, messages wait and it may take some: all its connections, and the log tells."""
    watched.looks(STALLED - 1)
    assert watched.channel.cuts == [0, 0]
    watched.looks(1)
    assert watched.channel.cuts == [1, 1]
    assert "no answer from Redis for 10 s while 5 messages wait" in caplog.text


def test_a_connection_that_is_gone_already_keeps_no_other(watched: Watched) -> None:
    """It cannot be shut down once more; the next one can."""
    watched.channel.links[0].gone = True
    watched.looks(STALLED)
    assert watched.channel.cuts == [0, 1]


def answers_in_time(watched: Watched) -> None:
    watched.channels = [type("Quick", (FakeChannel,), {"idle": STALLED - 0.1})(watched.clock)]


def solo_task(watched: Watched) -> None:
    watched.works, watched.silence = True, 1e6


LEFT_ALONE: dict[str, Any] = {
    "answered lately": answers_in_time,
    "no messages": lambda watched: setattr(watched.channel, "waits", 0),
    "no credit": lambda watched: setattr(watched.channel, "free", 0),
    "too much taken": lambda watched: setattr(watched.channel, "free", -1),
    "no queues": lambda watched: setattr(watched.channel, "active_queues", []),
    "closed": lambda watched: setattr(watched.channel, "closed", True),
    "solo task": solo_task,
    "nobody consumes": lambda watched: setattr(watched, "channels", []),
}


@pytest.mark.parametrize("state", LEFT_ALONE)
def test_what_is_not_stuck_is_left_alone(watched: Watched, state: str, caplog: pytest.LogCaptureFixture) -> None:
    """However long: neither a cut nor an end."""
    channels = watched.channels
    LEFT_ALONE[state](watched)
    watched.looks(3 * (STALLED + GIVE_UP))
    assert [one.cuts for one in [*channels, *watched.channels]] == [[0, 0]] * (len(channels) + len(watched.channels))
    assert watched.closed == 0
    assert caplog.text == ""


def test_tasks_in_a_pool_excuse_no_loop_that_turns(watched: Watched) -> None:
    """Work elsewhere does not hold up the loop: a channel that gets no answer all the same is stuck."""
    watched.works = True
    watched.silence = 0.1
    watched.looks(STALLED)
    assert watched.channel.cuts == [1, 1]


def test_gives_up_a_minute_after_the_cut(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """What is held goes back first, and the exit code says that another should start."""
    watched.looks(STALLED + GIVE_UP - 1)
    assert watched.closed == 0
    assert min(watched.channel.cuts) >= 1
    with pytest.raises(Ended) as end:
        watched.looks(1)
    assert end.value.args == (GAVE_UP,)
    assert watched.closed == 1
    assert "reconnecting did not help" in caplog.text


def test_never_gives_up_without_a_cut(watched: Watched) -> None:
    """Redis did not tell for minutes how much waits: the first thing done then is a cut."""
    watched.away = True
    for _ in range(int(2 * (STALLED + GIVE_UP))):
        with contextlib.suppress(StoreUnavailableError):
            watched.looks(1)
    assert watched.channel.cuts == [0, 0]
    watched.away = False
    watched.looks(1)
    assert watched.channel.cuts == [1, 1]
    assert watched.closed == 0


def test_a_cut_of_one_channel_is_no_cut_of_the_next(watched: Watched) -> None:
    """The channel after the reconnect has its own ten seconds and its own cut."""
    watched.looks(STALLED)
    watched.channels = [FakeChannel(watched.clock)]
    watched.looks(STALLED - 1)
    assert watched.channel.cuts == [0, 0]
    watched.looks(1)
    assert watched.channel.cuts == [1, 1]
    watched.looks(GIVE_UP - 1)
    assert watched.closed == 0


@pytest.mark.parametrize("cut", [False, True], ids=["before a cut", "after a cut"])
def test_a_process_that_stood_still_has_a_turn_first(watched: Watched, cut: bool) -> None:
    """A frozen container, swap: its loop was as late as the look, so neither a cut nor an end follows from that.
    If it still gets no answer, it is cut ten seconds later."""
    watched.looks(STALLED if cut else 1)
    before = watched.channel.cuts[0]
    watched.clock.time += 10 * (STALLED + GIVE_UP)
    watched.watch.look()
    watched.looks(STALLED - 1)
    assert watched.channel.cuts == [before, before]
    assert watched.closed == 0
    watched.looks(1)
    assert watched.channel.cuts == [before + 1, before + 1]
