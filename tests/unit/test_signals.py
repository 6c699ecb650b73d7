"""Signals cost nothing where nobody listens, and what listens breaks nothing."""

from __future__ import annotations

import ast
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from celery.utils.dispatch import Signal

import celery_hardened
from celery_hardened.pipeline import beat_signals
from celery_hardened.pipeline.beat_signals import PATIENCE, BeatSignals
from celery_hardened.signals import tell


def test_a_receiver_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The next one is told all the same, and whoever sends goes on."""
    signal, heard = Signal(name="one", providing_args={"what"}), []

    def first(**_: Any) -> None:
        raise ValueError("first")

    def second(sender: Any, what: int, **_: Any) -> None:
        heard.append((sender, what))

    signal.connect(first)
    signal.connect(second)
    tell(signal, "app", what=1)
    assert heard == [("app", 1)]
    assert "first" in caplog.text


def test_a_dispatch_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    signal = Signal(name="one", providing_args=set())
    signal.connect(lambda **_: None, weak=False)

    def send(*_: Any, **__: Any) -> None:
        raise RuntimeError("dispatch")

    monkeypatch.setattr(signal, "send", send)
    tell(signal, None)


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_process_ends_it(end: type[BaseException]) -> None:
    """A signal handler of the process may raise inside of a receiver: that is no error of the receiver."""
    signal = Signal(name="one", providing_args=set())

    def receiver(**_: Any) -> None:
        raise end

    signal.connect(receiver)
    with pytest.raises(end):
        tell(signal, None)


def test_methods_that_receive_are_told_apart() -> None:
    """Celery 5.6 takes the same method of two objects for one receiver, and connects the first alone."""
    package = Path(celery_hardened.__file__).parent
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in package.rglob("*.py")}
    methods = [
        (path.name, node.lineno, [keyword.arg for keyword in node.keywords])
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "connect"
        if node.args and isinstance(node.args[0], ast.Attribute)
    ]
    assert methods
    assert [one for one in methods if "dispatch_uid" not in one[2]] == []


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then telling is one question, and the dispatch, which takes a lock, is not begun."""
    signal, sent = Signal(name="one", providing_args={"task"}), list[str]()
    monkeypatch.setattr(signal, "send", lambda sender, *, task: sent.append(task))
    tell(signal, None, task="a")
    assert sent == []
    signal.connect(lambda **_: None, weak=False)
    tell(signal, None, task="b")
    assert sent == ["b"]


def test_the_end_of_a_beat_waits_for_its_signals_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told is told; a receiver that hangs holds the end up for two seconds."""
    signal, heard = Signal(name="one", providing_args={"number"}), []

    def hear(number: int, **_: Any) -> None:
        heard.append(number)

    signal.connect(hear)
    beat = BeatSignals(None)  # type: ignore[arg-type]  # the sender
    for number in range(100):
        beat.tell(signal, number=number)
    with monkeypatch.context() as patient:  # a machine may stand still for two seconds
        patient.setattr(beat_signals, "PATIENCE", 60.0)
        beat.close()
    assert heard == list(range(100))
    beat.close()

    stuck = BeatSignals(None)  # type: ignore[arg-type]
    gate = threading.Event()

    def hang(**_: Any) -> None:
        gate.wait(60)

    signal.connect(hang)
    stuck.tell(signal, number=1)
    began = time.monotonic()
    stuck.close()
    assert time.monotonic() - began < 10 * PATIENCE
    gate.set()
