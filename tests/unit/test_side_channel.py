"""What children tell arrives: from many at once, from those that are killed, and through a pipe that is full."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_hardened.metrics import side_channel
from celery_hardened.metrics.catalogue import PUBLISH_SECONDS, PUBLISHED, TASKS
from celery_hardened.metrics.metrics import Metrics
from celery_hardened.metrics.side_channel import SideChannel
from tests.support.until import until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

LABELS = ("shop.pay", "q", "published")


class Heard:
    """A channel, and what its parent has heard."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.notes: list[tuple[str, str]] = []
        self.values: list[float] = []

        def count(name: str, labels: tuple[str, ...], by: float) -> None:
            self.counts[name, labels] += int(by)

        self.channel = SideChannel(
            count,
            lambda task_id, outcome: self.notes.append((task_id, outcome)),
            lambda name, labels, value: self.values.append(value),
            lambda name, labels, value: None,
        )


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """Who tells waits for as long as it takes: a machine that stands still loses nothing."""
    monkeypatch.setattr(side_channel, "_PATIENCE", 60.0)
    heard = Heard()
    yield heard
    heard.channel.close()


def child(body: Callable[[], Any]) -> int:
    """Fork one that does *body* and ends; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
        os._exit(0)
    finally:
        os._exit(1)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_who_takes_comes_to_an_end() -> None:
    """Children that tell as fast as it is taken do not keep the loop that consumes from its work."""
    taken: list[float] = []

    def count(name: str, labels: tuple[str, ...], by: float) -> None:
        taken.append(by)
        if len(taken) < 200_000:
            channel.tell_count(name, labels, 1)

    channel = SideChannel(count, lambda *_: None, lambda *_: None, lambda *_: None)
    try:
        channel.tell_count("published", LABELS, 1)
        channel.drain()
        assert len(taken) < 100_000
    finally:
        channel.close()


def test_many_children_at_once(heard: Heard) -> None:
    """Their lines do not mix, and none is lost, though they tell faster than the pipe holds."""

    def tell() -> None:
        heard.channel.after_fork()
        for number in range(4000):
            heard.channel.tell_count("published", LABELS, 1)
            if number % 100 == 0:
                heard.channel.tell_note(f"{os.getpid()}-{number}", "replayed")
        heard.channel.flush()

    pids = [child(tell) for _ in range(6)]
    left = set(pids)
    deadline = time.monotonic() + 60
    while left and time.monotonic() < deadline:
        heard.channel.drain()
        left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
    assert not left
    heard.channel.drain()
    assert heard.counts == {("published", LABELS): 24_000}
    assert len(set(heard.notes)) == 6 * 40


def test_a_writer_that_is_killed_tears_no_line(heard: Heard) -> None:
    """Each line is whole or not there; what the others tell is heard."""

    def tell() -> None:
        heard.channel.after_fork()
        number = 0
        while True:
            number += 1
            heard.channel.tell_note(f"{os.getpid()}-{number}-" + "x" * 3000, "replayed")

    for _ in range(10):
        pid = child(tell)
        seen = len(heard.notes)

        def told(seen: int = seen) -> bool:
            heard.channel.drain()
            return len(heard.notes) > seen + 20

        until(told, within=30, every=0, what="the child to tell")
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL
        heard.channel.drain()
        assert heard.channel._rest == b""
        mine = [int(note.split("-")[1]) for note, _ in heard.notes if note.startswith(f"{pid}-")]
        assert mine == list(range(1, len(mine) + 1))


def test_what_was_told_outlives_who_told_it(heard: Heard) -> None:
    """Killed right after, its word is in the pipe."""

    def tell() -> None:
        heard.channel.after_fork()
        heard.channel.tell_note("t1", "replayed")
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended(child(tell)) == -signal.SIGKILL
    heard.channel.drain()
    assert heard.notes == [("t1", "replayed")]


def test_a_full_pipe_holds_no_task_up(heard: Heard) -> None:
    """Counts are kept, and told with the next one, or at the end of the child; nothing is lost, nothing waits."""
    while heard.channel._sent(["v", "x", [], 1.0]):
        pass
    began = time.monotonic()
    for _ in range(100):
        heard.channel.tell_count("published", LABELS, 1)
        heard.channel.tell_value("x", (), 1.0)
    assert time.monotonic() - began < 5  # a note would have waited; a hundred, for minutes
    heard.channel.drain()
    assert heard.counts == {}
    heard.channel.flush()
    heard.channel.drain()
    assert heard.counts == {("published", LABELS): 100}


def test_a_note_waits_until_the_parent_has_read(heard: Heard) -> None:
    """Without it the result would be counted as something else."""
    while heard.channel._sent(["v", "x", [], 1.0]):
        pass
    reader = threading.Timer(0.1, heard.channel.drain)
    reader.start()
    heard.channel.tell_note("t1", "replayed")
    reader.join()
    heard.channel.drain()
    assert heard.notes == [("t1", "replayed")]


def test_a_child_whose_parent_is_gone_goes_on(heard: Heard) -> None:
    """It holds no reading end of its own, so the pipe is broken and not merely full."""

    gate, opened = os.pipe()

    def tell() -> None:
        heard.channel.after_fork()
        os.read(gate, 1)
        began = time.monotonic()
        for number in range(60_000):  # more than the pipe holds
            heard.channel.tell_note(f"t{number}", "replayed")
            assert time.monotonic() - began < 30

    pid = child(tell)
    os.close(heard.channel._read)
    heard.channel._read = -1
    os.write(opened, b".")
    assert ended(pid) == 0
    os.close(gate)
    os.close(opened)


def test_what_nobody_understands_is_said_and_passed_over(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    """A line of a task's own that writes to files which are not its."""
    os.write(heard.channel._write, b'rubbish\n{"a": 1}\n["c"]\n["z", 1]\n')
    heard.channel.tell_note("t1", "replayed")
    heard.channel.drain()
    assert heard.notes == [("t1", "replayed")]
    assert caplog.text.count("nobody understands") == 4


def test_names_that_are_too_long_are_folded(heard: Heard) -> None:
    heard.channel.tell_count("published", ("x" * 5000, "q", "published"), 2)
    heard.channel.drain()
    assert heard.counts == {("published", ("other",) * 3): 2}


def test_a_channel_that_is_closed_touches_no_file(heard: Heard) -> None:
    """The number of a closed file may be a connection's by now."""
    numbers = (heard.channel._read, heard.channel._write)
    heard.channel.close()
    made = os.pipe()
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 500) for end in made]
    for end in made:
        os.close(end)
    for end, number in zip(theirs, numbers, strict=True):
        os.dup2(end, number, inheritable=False)
        os.close(end)
    read, write = numbers
    os.set_blocking(read, False)
    heard.channel.tell_count("published", LABELS, 1)
    with pytest.raises(BlockingIOError):
        os.read(read, 100)
    os.write(write, b"not ours")
    heard.channel.drain()
    heard.channel.close()
    assert os.read(read, 100) == b"not ours"
    os.close(read)
    os.close(write)


# --- through Metrics ------------------------------------------------------------------------------------------


def test_a_child_and_what_it_forks_tell_the_worker() -> None:
    """Counts, values and notes reach the registry of the process that made the channel, also a grandchild's."""
    metrics = Metrics()
    metrics.keep_here(forks=True)
    metrics.inc(TASKS, ("t", "q", "success"))

    def grandchild() -> None:
        metrics.inc(PUBLISHED, LABELS)

    def tell() -> None:
        assert metrics.place == "child"
        metrics.inc(PUBLISHED, LABELS)
        metrics.observe(PUBLISH_SECONDS, ("published",), 0.2)
        metrics.note("t1", "replayed")
        assert ended(child(grandchild)) == 0
        metrics.flush()

    assert ended(child(tell)) == 0
    assert metrics.noted("t1") == "replayed"
    assert metrics.noted("t1") is None
    assert metrics.registry.value(PUBLISHED, LABELS) == 2
    assert metrics.registry.value(PUBLISH_SECONDS, ("published",)) == 1
    assert metrics.registry.value(TASKS, ("t", "q", "success")) == 1


def test_without_a_channel_a_child_counts_nothing() -> None:
    """Of a beat or an exporter: numbers that nobody could see."""
    metrics = Metrics()
    metrics.keep_here()

    def tell() -> None:
        assert metrics.place == "off"
        metrics.inc(PUBLISHED, LABELS)

    assert ended(child(tell)) == 0
    assert metrics.registry.value(PUBLISHED, LABELS) == 0


def test_notes_that_nobody_asks_for_are_bounded() -> None:
    """Ten thousand are kept, the latest."""
    metrics = Metrics()
    metrics.keep_here()
    for number in range(10_010):
        metrics.note(f"t{number}", "replayed")
    assert metrics.noted("t0") is None
    assert metrics.noted("t10009") == "replayed"
    assert len(metrics._notes) == 9_999
