"""A wall clock of its own for a process, which a test sets while the process runs.

The monotonic clock, and with it every wait, is left alone: this is what a step of NTP, a leap in a
virtual machine's clock or a wrong date looks like to a process. Works for programs that are linked with
the C library of this machine, such as Python; a child process inherits it.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import time
from datetime import datetime
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("gcc") or shutil.which("cc")


@cache
def library() -> Path:
    """What is to be preloaded; compiled once in each test process.

    Raises:
        subprocess.CalledProcessError: It does not compile; what the compiler says goes to stderr.
    """
    gcc = compiler()
    assert gcc is not None, "no C compiler is installed"
    directory = tempfile.mkdtemp(prefix="hardened-clock-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    built = Path(directory) / "wallshift.so"
    subprocess.run([gcc, "-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o", built, _SOURCE, "-ldl"], check=True)
    return built


class WallShift:
    """One clock, which as many processes as one likes are given.

    Args:
        file: Where the shift is kept; made, with no shift.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset = 0.0
        """Seconds it is ahead of this machine's clock."""
        self.set(0.0)

    @property
    def environment(self) -> dict[str, str]:
        """What a process is started with to have this clock."""
        return {"LD_PRELOAD": str(library()), "WALLSHIFT_FILE": str(self._file)}

    def set(self, to: datetime | float) -> None:
        """Set the clock: to a moment (aware), or so many seconds ahead of this machine's clock.

        It runs on from there, and its processes see it when they look next: all of the change or none.
        """
        if isinstance(to, datetime):
            assert to.tzinfo is not None, "a naive moment is none"
            to = to.timestamp() - time.time()
        new = self._file.with_suffix(".new")
        new.write_text(f"{to:.6f}")
        new.replace(self._file)
        self.offset = to

    def now(self) -> float:
        """What it shows: seconds since the epoch."""
        return time.time() + self.offset
