"""``example_project`` as ``./dev example`` runs it: the supervisor, all its processes, and somebody who visits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_hardened.embedded import die_with_parent
from tests.support.until import until
from tests.support.visitor import Visitor

ROOT = Path(__file__).parents[2]

PASSWORD = "of the tour"

#: What the shell of whoever runs the tests holds is not meant for the example.
_NOT_OURS = ("EXAMPLE_", "DJANGO_", "CELERY_", "HARDENED_")


class ExampleSite:
    """
    Args:
        folder: Of the example; its output is there too.
        env: Its ``EXAMPLE_*`` variables.
    """

    def __init__(self, folder: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.output = folder.with_suffix(".out")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
        self.servers = dict(env or {})
        self._env = {**kept, "PYTHONPATH": str(ROOT), "EXAMPLE_ADMIN_PASSWORD": PASSWORD, **(env or {})}
        self._popen: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.descendants: dict[int, float] = {}

    def start(self) -> None:
        """Start it, and wait until it says that it is ready.

        Raises:
            AssertionError: It is not within some minutes, or has ended.
        """
        with self.output.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "--folder", str(self.folder)],
                cwd=ROOT / "example_project",
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),
            )
        self.url = until(self._ready, within=180, what="the example to be ready")

    def _ready(self) -> str:
        found = re.search(r"^ready: (http://\S+)/$", self.said(), re.MULTILINE)
        if not found and self._popen is not None and self._popen.poll() is not None:
            raise AssertionError(f"the example ended with {self._popen.returncode} and wrote:\n{self.said()}")
        return found[1] if found else ""

    def visitor(self) -> Visitor:
        return Visitor(self.url)

    def said(self) -> str:
        """All that the supervisor wrote."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def type(self, line: str) -> None:
        """Type *line* into its terminal."""
        assert self._popen is not None
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{line}\n".encode())
        self._popen.stdin.flush()

    def pid(self, name: str) -> int | None:
        """Of the process of that name, as the tour's ``cat`` finds it; ``None`` while it does not run."""
        try:
            return int((self.folder / "pids" / name).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def kill(self, name: str) -> int:
        """``kill -9 $(cat pids/NAME)``; the id that it had."""
        pid = self.pid(name)
        assert pid is not None, f"{name} does not run"
        os.kill(pid, signal.SIGKILL)
        return pid

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def remember(self) -> None:
        """Note every process that it has now, to see later whether one is left."""
        assert self._popen is not None
        for one in psutil.Process(self._popen.pid).children(recursive=True):
            with_time = _created(one)
            if with_time is not None:
                self.descendants[one.pid] = with_time

    def interrupt(self) -> int:
        """Ctrl-C, and its exit code when it has ended."""
        assert self._popen is not None
        self.remember()
        self._popen.send_signal(signal.SIGINT)
        return self._popen.wait(90)

    def left(self) -> list[str]:
        """Processes of it that are still there."""
        return [f"{pid} {_words(pid)}" for pid, began in self.descendants.items() if _created(_process(pid)) == began]

    def stop(self) -> None:
        """End it and all that it started, however it stands."""
        if self._popen is None:
            return
        if self._popen.poll() is None:
            self.remember()
            self._popen.send_signal(signal.SIGINT)
            try:
                self._popen.wait(60)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        deadline = time.monotonic() + 5
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid, began in self.descendants.items():
            if _created(_process(pid)) == began:
                os.kill(pid, signal.SIGKILL)


#: The site of a module, for the report of its tests.
SITE = pytest.StashKey[ExampleSite]()


def _process(pid: int) -> Any:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _created(process: Any) -> float | None:
    """When it was made, which tells it from a later one of the same id; ``None`` if it is no more."""
    try:
        if process is None or process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def _words(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""
