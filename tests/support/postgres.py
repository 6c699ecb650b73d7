"""A private PostgreSQL with a database for everyone who asks."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg

from tests.support.ports import free_port
from tests.support.proc import Proc
from tests.support.until import until

#: Debian puts the server's programs here and nowhere on PATH.
_DEBIAN = Path("/usr/lib/postgresql")

#: No test needs the disk: what counts is what a killed *client* leaves behind.
_OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "timezone": "UTC",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}


class Postgres:
    """One server, restartable; it refuses to run as root, so root starts it as ``postgres`` or ``nobody``.

    Args:
        directory: Where it keeps its files; that user must be able to reach it.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self._numbers = itertools.count(1)
        self._programs = self.programs() or Path()
        self._data = directory / "data"
        self._as_user: list[str] = []
        if os.getuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            shutil.chown(directory, user.pw_uid, user.pw_gid)
            # A change of user makes the kernel forget to kill the child with us; setpriv asks anew.
            change = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            self._as_user = [*change, "--pdeathsig=KILL"]
        options = [f"--{name}={value}" for name, value in {**_OPTIONS, "port": str(self.port)}.items()]
        argv = [*self._as_user, str(self._programs / "postgres"), "-D", str(self._data), *options]
        self.process = Proc("postgres", argv, cwd=directory, env={"HOME": str(directory)})

    @staticmethod
    def programs() -> Path | None:
        """The folder of the server's programs, of the newest version; ``None`` if it is not installed."""
        found = [path.parent for path in _DEBIAN.glob("*/bin/postgres") if (path.parent / "initdb").exists()]
        if found:
            return max(found, key=lambda path: float(path.parent.name))
        initdb = shutil.which("initdb")
        return Path(initdb).resolve().parent if initdb else None

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        if not self._data.exists():
            initdb = [str(self._programs / "initdb"), "-D", str(self._data), "-U", "test", "-A", "trust"]
            subprocess.run(
                [*self._as_user, *initdb, "-E", "UTF8", "--locale=C", "--no-sync"],
                cwd=self.directory,
                env={**os.environ, "HOME": str(self.directory)},
                check=True,
                capture_output=True,
            )
        self.process.start()
        until(self._answers, within=60, what="PostgreSQL to take connections")

    def stop(self) -> None:
        """Shut it down at once; clients are disconnected."""
        self.process.signal(signal.SIGINT)
        self.process.stop()

    def url(self, name: str = "postgres") -> str:
        """URL of database *name*."""
        return f"postgresql://test@127.0.0.1:{self.port}/{name}"

    def database(self) -> str:
        """URL of a new, empty database."""
        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def _answers(self) -> bool:
        assert self.process.running, self.process.log()[-2000:]
        try:
            with psycopg.connect(self.url(), connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False
