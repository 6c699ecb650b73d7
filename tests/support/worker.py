"""A real ``celery worker`` on the text of an app module."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.proc import Proc
from tests.support.until import until

#: The name every app module of a test goes by, in workers and in the test process:
#: task names begin with it.
MODULE = "proj"

POOLS = ("prefork", "threads", "gevent", "solo")

_ROOT = Path(__file__).parents[2]


def lay_out(directory: Path, source: str) -> dict[str, str]:
    """Write *source* as the app module into *directory*; the environment that lets a process import it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{MODULE}.py").write_text(source)
    return {"PYTHONPATH": os.pathsep.join([str(directory), str(_ROOT)])}


class WorkerProcess(Proc):
    """
    One ``celery -A proj worker``, its pool children included.

    Args:
        name: Node name, which its log file is named after.
        directory: Made, and filled with the app module.
        source: Text of the app module.
        pool: One of `POOLS`.
        concurrency: Children, threads or greenlets; the solo pool has one anyway.
        queues: Queues to consume, ``None``: what the app says.
        env: Added to the environment.
        args: Added to the command line.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        source: str,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
    ) -> None:
        argv = [sys.executable, "-m", "celery", "-A", MODULE, "worker", "--pool", pool]
        argv += ["--concurrency", str(concurrency), "--hostname", f"{name}@test", "--loglevel", "INFO"]
        # Talk among workers takes a second of every start and is what no test is about.
        argv += ["--without-gossip", "--without-mingle"]
        if queues is not None:
            argv += ["--queues", ",".join(queues)]
        super().__init__(name, [*argv, *args], cwd=directory, env={**lay_out(directory, source), **(env or {})})
        self.pool = pool
        self._seen = 0

    def start(self) -> None:
        """Start it, once more if it ended. Does not wait."""
        self._seen = len(self.log())
        super().start()

    def wait_ready(self, *, within: float = 60.0) -> None:
        """Wait until it consumes.

        Raises:
            ProcessEnded: It ended before; the message ends with its log.
        """
        self.wait_for_log(" ready.", within=within, since=self._seen)

    def restart(self) -> None:
        """A warm shutdown, then the same worker again, ready."""
        self.stop()
        self.start()
        self.wait_ready()

    def kill_child(self, pid: int | None = None) -> int:
        """SIGKILL to one pool child, the oldest if none is named, as the kernel does when memory runs out.

        Returns:
            The process id it had, when it is gone.
        """
        victim = psutil.Process(self.children()[0] if pid is None else pid)
        victim.kill()

        def gone() -> bool:
            try:
                return not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:  # its worker took its exit code between the two
                return True

        until(gone, within=10, what=f"pool child {victim.pid} of {self.name} to be gone")
        return victim.pid
