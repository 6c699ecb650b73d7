"""A process of the demo, in a session of its own so that all it starts can be ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from celery_hardened.embedded import die_with_parent


class Spawned:
    """
    One running process. Ctrl-C in the terminal does not reach it: the demo ends it.

    Args:
        name: What it is called in messages.
        argv: Program and arguments.
        cwd: Its working directory.
        env: Its whole environment.
        output: File that standard output is appended to.
        errors: File for standard error; it may be the same.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        output: Path,
        errors: Path,
    ) -> None:
        self.name = name
        self._errors = errors
        with output.open("ab") as out, errors.open("ab") as err:
            self._process = subprocess.Popen(  # noqa: S603 - the arguments are the demo's own
                argv,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """``None`` while it runs; minus the signal's number if one ended it."""
        return self._process.poll()

    def wrote(self, most: int = 8000) -> str:
        """The end of what it wrote to standard error."""
        return self._errors.read_text("utf-8", "replace")[-most:]

    def ask_to_stop(self) -> None:
        """SIGTERM, on which a worker finishes what it has begun."""
        if self.exit_code is None:
            self._process.terminate()

    def kill_all(self) -> None:
        """SIGKILL to it and to all it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def anything_left(self) -> bool:
        """Whether it, or a process it started, is still there."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so of a group of zombies
            return self.exit_code is None
        return True
