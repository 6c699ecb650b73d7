"""A wall clock made steady: schedules follow it, and it does not go back. Both clocks are arguments."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

#: A clock further ahead than this was never right: then it is better to go back once than to be wrong for long.
FAR_AHEAD = 86_400.0


class SteadyClock:
    """Follows *wall*, except back: then it runs at half speed until *wall* has caught up.

    A step forward is followed at once. A step back of d seconds is over after 2 d: meanwhile no slot comes
    again, and none is waited for in vain. A step back of more than a day puts an end to a date that was
    wrong, and is followed too; ``times_brought_back`` then goes up, and cursors are to be brought back.

    Safe to be read by several threads.

    Args:
        wall: Seconds since the epoch.
        monotonic: Seconds since whenever, which never goes back.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._lock = Lock()
        self._at = monotonic()
        self._shown = wall()
        self.times_brought_back = 0
        """How often it went back by more than a day."""

    def now(self) -> float:
        """Seconds since the epoch; not earlier than the last time it was asked."""
        with self._lock:
            return self._read()[0]

    @property
    def set_back(self) -> float:
        """Seconds it is ahead of the wall clock, since that one was set back; 0.0 as a rule."""
        with self._lock:
            shown, wall = self._read()
            return shown - wall

    def start_at_least(self, mark: float) -> bool:
        """Begin no earlier than *mark*, which another beat's clock has shown.

        Returns:
            False if *mark* is more than a day ahead of the wall clock, or no number: it is not obeyed.
        """
        with self._lock:
            shown, wall = self._read()
            if not mark - wall <= FAR_AHEAD:  # NaN too
                return False
            self._shown = max(shown, mark)
            return True

    def _read(self) -> tuple[float, float]:
        # Both are read under the lock: readings that overtake each other would look like a step back.
        wall, at = self._wall(), self._monotonic()
        shown = max(wall, self._shown + max(0.0, at - self._at) / 2)
        if shown - wall > FAR_AHEAD:
            shown = wall
            self.times_brought_back += 1
        self._at, self._shown = max(at, self._at), shown
        return shown, wall
