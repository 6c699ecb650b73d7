"""A supervised process: its own session, its output in a file, every way to die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from celery_hardened.embedded import die_with_parent
from tests.support.frozen import is_frozen
from tests.support.until import until

LOG_TAIL = 6000


class ProcessEnded(AssertionError):  # noqa: N818 - a verdict of a test, like the class it extends
    """The process was expected to be there and is not."""


def _group_of(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


class Proc:
    """
    One process, leader of its own group, so that whatever it starts can be ended with it.

    It dies with the test process, even when that one is killed.
    """

    def __init__(self, name: str, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.argv = list(argv)
        self.cwd = cwd
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **(env or {})}
        self.log_path = cwd / f"{name}.log"
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, once more if it ended; the log goes on."""
        assert not self.running, f"{self.name} is running already"
        self.cwd.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                self.argv,
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    # --- what it is -------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Process id, of the last start if it ended."""
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether the process itself (not a child of it) is there."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit code, minus the signal's number if one ended it, ``None`` while it runs."""
        return None if self._popen is None else self._popen.poll()

    def children(self) -> list[int]:
        """Process ids of its direct children, oldest first."""
        if not self.running:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            living = [p for p in psutil.Process(self.pid).children() if p.status() != psutil.STATUS_ZOMBIE]
            return [p.pid for p in sorted(living, key=lambda p: p.create_time())]
        return []

    def wait(self, *, within: float = 30.0) -> int:
        """Wait for it to end by itself and return its exit code."""
        until(lambda: not self.running, within=within, what=f"{self.name} to end")
        assert self.returncode is not None
        return self.returncode

    # --- what happens to it -----------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Send a signal to the process alone; none if it ended."""
        if self.running:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to it and all it started, also when it ended itself."""
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the process alone: what it started is orphaned."""
        self.signal(signal.SIGKILL)
        self._reap()

    def kill_group(self) -> None:
        """SIGKILL to all at once: a lost container, a power cut."""
        self.signal_group(signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        """SIGSTOP to all: there, connected, and silent when this returns."""
        self.signal_group(signal.SIGSTOP)
        group = [one.pid for one in psutil.process_iter() if _group_of(one.pid) == self.pid]
        until(lambda: all(map(is_frozen, group)), within=30, what=f"all of {self.name} to stand still")

    def resume(self) -> None:
        """SIGCONT to all."""
        self.signal_group(signal.SIGCONT)

    def stop(self, *, within: float = 20.0) -> None:
        """SIGTERM, then SIGKILL to whatever is left of the group. Always ends with nothing running."""
        if self._popen is None:
            return
        self.resume()
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(within)
        self.kill_group()

    def _reap(self) -> None:
        if self._popen is not None:
            self._popen.wait(60)  # a disk or a machine that stands still keeps a killed process, too

    # --- what it says -----------------------------------------------------------------------

    def log(self) -> str:
        """All it wrote, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_for_log(self, text: str, *, within: float = 30.0, since: int = 0) -> None:
        """
        Wait until it wrote *text* after the first *since* characters.

        Raises:
            ProcessEnded: It ended without writing it.
            AssertionError: The time is up.
        """

        def written() -> bool:
            there = self.running  # asked first: the last words of an ended process count
            if text in self.log()[since:]:
                return True
            if not there:
                raise ProcessEnded(f"{self.name} ended with {self.returncode} and wrote:\n{self.log()[-LOG_TAIL:]}")
            return False

        until(written, within=within, what=f"{self.name} to write {text!r}")
