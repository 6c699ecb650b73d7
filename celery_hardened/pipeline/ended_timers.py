"""Time limits of tasks that have ended are taken out of the worker's timer, instead of when they would be due.

The prefork pool sets a timer for each task with a time limit, and cancels it when the task ends. kombu keeps what is
cancelled until it is due: at 300 tasks a second with a limit of 240 s that is 72,000 entries, of five objects each,
which cost memory and are looked at in each full garbage collection.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

#: Seconds between two looks.
EVERY: Final = 1.0

#: Entries that one look takes up at most (3 ms), and after how many that are still wanted it ends: the limits of tasks
#: that run, or tasks that wait until they are due.
MOST, WANTED = 2000, 100


def forget_ended(timer: Any, last: Any = None) -> Any:
    """Look through *timer*, which has to be an event hub's, each second from now on.

    Args:
        last: What this returned when the consumer connected before.
    """
    if last is not None:
        timer.cancel(last)
    return timer.call_repeatedly(EVERY, sweep, (timer,))


def sweep(timer: Any) -> int:
    """Take out those of the entries due next that are cancelled; how many."""
    queue = timer._queue  # kombu's loop holds this very list
    wanted: list[Any] = []
    ended = 0
    try:
        # One step at a time, as each is whole: another thread may set a timer between any two.
        while queue and ended < MOST and len(wanted) < WANTED:
            entry = heapq.heappop(queue)
            if entry[2].canceled:
                ended += 1
            else:
                wanted.append(entry)
    finally:
        for entry in wanted:
            heapq.heappush(queue, entry)
    return ended
