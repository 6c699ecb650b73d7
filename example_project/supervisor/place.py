"""The folder that everything is kept in, and the environment that its processes get."""

import fcntl
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from celery_hardened.embedded import EmbeddedValkey

PROJECT = Path(__file__).resolve().parent.parent


class PlaceError(Exception):
    """The example cannot be set up here. The message says what to do."""


class Place:
    """
    Args:
        folder: For databases, logs and process ids. It is kept from one time to the next.
        fresh: Begin with an empty one.
    """

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        self.folder = folder.resolve()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        # Beside the folder, so that nobody empties it under somebody else.
        self._lock = self.folder.with_name(self.folder.name + ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PlaceError(f"the example runs already in {self.folder}; --folder takes another one.") from None
        if fresh:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        self._keep_to(os.environ.get("EXAMPLE_DATABASE", ""))
        for name in ("logs", "pids"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for left in (self.folder / "pids").iterdir():
            left.unlink()
        self.valkey: EmbeddedValkey | None = None
        if not os.environ.get("EXAMPLE_REDIS"):
            # Every write goes to disk: what waits in a queue today is done tomorrow.
            self.valkey = EmbeddedValkey(self.folder / "valkey", persist=True)

    def _keep_to(self, database: str) -> None:
        """The ledger, and the keys of what is done, tell orders apart by their numbers, which another database gives
        out once more: its orders would be taken for paid."""
        parts = urlsplit(database)
        place = f"{parts.hostname}:{parts.port or 5432}{parts.path}" if database else "SQLite"
        note = self.folder / "database"
        noted = note.read_text() if note.exists() else place
        if noted != place:
            raise PlaceError(
                f"{self.folder} is about the orders of {noted}, and now the database is {place}. "
                "--fresh begins anew, --folder takes another folder."
            )
        note.write_text(place)

    def open(self) -> dict[str, str]:
        """Start what is embedded; the environment of all processes."""
        environment = dict(os.environ)
        if self.valkey is not None:
            self._start_valkey(self.valkey)
            environment["EXAMPLE_REDIS"] = self.valkey.url
        if not environment.get("EXAMPLE_GATEWAY"):
            environment["EXAMPLE_GATEWAY"] = f"http://127.0.0.1:{free_port()}"
        # A pool that is killed leaves files behind; here they are in nobody's way.
        temporary = self.folder / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        environment["EXAMPLE_FOLDER"] = str(self.folder)
        # For a second terminal. What the first one was given, passwords perhaps, is in no file.
        ours = [name for name in ("EXAMPLE_FOLDER", "EXAMPLE_GATEWAY", "EXAMPLE_REDIS") if name not in os.environ]
        exports = [f"export {name}={shlex.quote(environment[name])}\n" for name in ours]
        (self.folder / "environment").write_text("".join(exports))
        return {
            **environment,
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(temporary),
            # `celery` and `python` of the Procfile are those of this environment.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]),
        }

    def look_after(self, say: Callable[[str], None]) -> None:
        """Start the Valkey again if it has died. It has on disk all that it ever accepted."""
        if self.valkey is not None and not self.valkey.running:
            self._start_valkey(self.valkey)
            say(f"valkey had died, and is started again, pid {self.valkey.pid}")

    def _start_valkey(self, valkey: EmbeddedValkey) -> None:
        valkey.start()
        (self.folder / "pids" / "valkey").write_text(f"{valkey.pid}\n")

    def close(self) -> None:
        if self.valkey is not None:
            self.valkey.stop()
        self._lock.close()


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
