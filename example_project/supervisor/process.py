"""One process, with all that it starts."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from celery_hardened.embedded import die_with_parent


class Process:
    """
    Args:
        name: Its name in the ``Procfile``.
        argv: Program and arguments.
        environment: Its whole environment.
        folder: Its working directory.
        log: File that its output is appended to.
        pid_file: Holds its id while it runs.
    """

    def __init__(
        self, name: str, argv: list[str], *, environment: dict[str, str], folder: Path, log: Path, pid_file: Path
    ) -> None:
        self.name = name
        self.argv = argv
        self.log = log
        self._environment = environment
        self._folder = folder
        self._pid_file = pid_file
        self._popen: subprocess.Popen[bytes] | None = None

        #: Somebody wants it to run.
        self.wanted = False

        #: When it is to be started again, by the monotonic clock; ``None``: it runs, or nobody wants it to.
        self.again_at: float | None = None

    @property
    def pid(self) -> int | None:
        """``None`` unless it runs."""
        return self._popen.pid if self._popen is not None and self._popen.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """Minus the signal's number if one ended it; ``None`` while it runs, and before it was started."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        self.wanted, self.again_at = True, None
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(  # noqa: S603 - from the Procfile
                self.argv,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the supervisor, and what it starts can be ended with it.
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self._pid_file.write_text(f"{self._popen.pid}\n")

    def ask_to_end(self) -> None:
        """SIGTERM, and nobody wants it to run any more."""
        self.wanted, self.again_at = False, None
        if self._popen is not None and self.pid is not None:
            self._popen.terminate()

    def kill(self) -> None:
        """SIGKILL to it alone, as the kernel does it when memory runs out."""
        if self._popen is not None and self.pid is not None:
            self._popen.kill()

    def bury(self) -> None:
        """End whatever it left behind, as systemd and containers do when the main process is gone."""
        self._pid_file.unlink(missing_ok=True)
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()

    def how_it_ended(self) -> str:
        code = self.exit_code or 0
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
