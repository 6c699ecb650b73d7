"""Whether a process that was told to stop does so."""

from __future__ import annotations

from pathlib import Path

#: Of proc(5): stopped, by a signal or a tracer; and what ended.
_STILL = frozenset("TtZXx")


def is_frozen(pid: int) -> bool:
    """Have all its threads stopped? SIGSTOP is sent at once, and each thread heeds it when it has a processor next;
    on a busy machine some go on for milliseconds, in which a server takes and answers what came after it."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in _STILL:
            return False
    return True
