"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_held_back() -> Iterator[Callable[[], bool]]:
    """Hold the first Ctrl-C back, so that a step is done wholly or not at all.

    Yields a function that says whether it was pressed, to be asked between two
    steps. A second one is not held back: somebody is in earnest.
    """
    pressed = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
