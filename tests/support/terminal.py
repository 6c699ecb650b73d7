"""A command at a real terminal: it sees a pty as input, output and errors."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def at_terminal(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], answers: Mapping[str, str], within: float = 120.0
) -> tuple[int, str]:
    """
    Run *argv* to its end at a terminal of 200 columns: exit code, and all that appeared.

    Args:
        answers: What is typed once the key has appeared; ``"\\x03"`` is Ctrl-C.
        within: Seconds until the test fails.
    """
    main, side = pty.openpty()
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200", **env},
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        preexec_fn=_own_terminal,
    )
    os.close(side)
    seen, left = b"", dict(answers)
    deadline = time.monotonic() + within
    try:
        # EIO is how Linux says that nobody holds the other side any more.
        with contextlib.suppress(OSError):
            while chunk := os.read(main, 65536):
                seen += chunk
                for asked in [asked for asked in left if asked.encode() in seen]:
                    os.write(main, left.pop(asked).encode())
                assert time.monotonic() < deadline, seen.decode(errors="replace")
        return process.wait(30), seen.decode(errors="replace")
    finally:
        process.kill()
        process.wait(10)
        os.close(main)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
