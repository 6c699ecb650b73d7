"""Whether the main loop of a beat still lives, as its other thread sees it."""

from __future__ import annotations

from collections.abc import Callable


class Stall:
    """How long the main loop has been silent while the looking thread ran.

    A process that was stopped and goes on is not stalled: of the time between two
    looks, *step* at most counts.

    Args:
        after: Seconds of silence that are a stall.
        exit_after: Seconds of silence after which nothing is hoped for. ``None``: there is always hope.
        step: Seconds that may pass between two looks of a thread that runs.
    """

    def __init__(self, monotonic: Callable[[], float], *, after: float, exit_after: float | None, step: float) -> None:
        self._monotonic = monotonic
        self._after = after
        self._exit_after = exit_after
        self._step = step
        self._stalled = False
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._touched = self._looked = self._monotonic()
        self._seen = self._touched
        self.silent = 0.0
        """Seconds of silence as of the last look."""

    def touch(self) -> bool:
        """The main loop lives. Was it taken for stalled?"""
        self._touched = self._monotonic()
        was, self._stalled = self._stalled, False
        return was

    def idle(self) -> float:
        """Seconds since it was last known to live, stopped or not."""
        return max(0.0, self._monotonic() - self._touched)

    def look(self) -> bool:
        """Is it stalled? Called by the looking thread alone, again and again."""
        now, touched = self._monotonic(), self._touched
        if touched != self._seen:
            self._seen, self.silent = touched, 0.0
        else:
            self.silent += min(now - self._looked, self._step)
        self._looked = now
        if self.silent > self._after:
            self._stalled = True
        return self.silent > self._after

    @property
    def is_over(self) -> bool:
        """It was silent for so long that the process had better end."""
        return self._exit_after is not None and self.silent > self._exit_after
