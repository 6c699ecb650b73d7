"""How a loop learns that its worker stops."""

from __future__ import annotations

from typing import Any

import pytest
from celery import signals

from celery_hardened.pipeline import stopping


class Worker:
    """The names of Celery's worker that are leaned on."""

    def __init__(self, hostname: str = "w@here") -> None:
        self.hostname = hostname
        self.seen: list[Any] = []

    def wait_for_soft_shutdown(self) -> str:
        self.seen.append(stopping.told())
        return "waited"

    def signal_consumer_close(self) -> None:
        self.seen.append(stopping.told())


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_byte", None)


def test_a_process_without_a_worker_does_not_stop() -> None:
    """A producer, an eager task, and a child that was spawned."""
    assert not stopping.told()


def test_the_signal_of_a_stop() -> None:
    """Celery sends it in its signal handler, with the node's name."""
    worker = Worker()
    stopping.watch(worker)
    assert not stopping.told()
    signals.worker_shutting_down.send(sender="other@here", sig="SIGTERM", how="Warm", exitcode=0)
    assert not stopping.told()
    signals.worker_shutting_down.send(sender="w@here", sig="SIGTERM", how="Warm", exitcode=0)
    assert stopping.told()


def test_a_soft_shutdown_is_told_before_its_wait() -> None:
    """The wait is what the loops are to make use of."""
    worker = Worker()
    stopping.watch(worker)
    assert worker.wait_for_soft_shutdown() == "waited"
    assert worker.seen == [True]


def test_a_stop_without_a_signal() -> None:
    """``control shutdown``, or an error that ends the worker."""
    worker = Worker()
    stopping.watch(worker)
    worker.signal_consumer_close()
    assert worker.seen == [True]


def test_the_next_worker_of_the_process_begins_anew() -> None:
    """As in a test suite that starts one after the other; what the first one is told is not meant for it."""
    first, second = Worker("first@here"), Worker("second@here")
    stopping.watch(first)
    first.signal_consumer_close()
    stopping.watch(second)
    assert not stopping.told()
    first.signal_consumer_close()
    assert not stopping.told()


def test_the_byte_is_shared_memory() -> None:
    """A copy would be the child's own: what the worker writes later would not be seen there."""
    stopping.watch(Worker())
    assert type(stopping._byte).__name__ == "mmap"
