"""All processes: started, looked after, and ended."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from supervisor import procfile
from supervisor.place import PROJECT, PlaceError, free_port
from supervisor.process import Process

#: Seconds between a process's death and its next start: long enough to see that it is gone.
PAUSE = 5.0

#: Seconds that all have to come up.
_UP = 120.0

#: Seconds that all have to end in order.
_GRACE = 20.0


class Running:
    """
    Args:
        folder: Where logs and process ids are kept.
        environment: That of every process; each has a ``PORT`` of its own besides.
        say: Told what happens, in lines.
        port: Of the web process; 0 is any that is free.
    """

    def __init__(self, folder: Path, environment: dict[str, str], *, say: Callable[[str], None], port: int) -> None:
        self._environment = environment
        self._say = say
        commands = procfile.read(PROJECT / "Procfile")
        self._release = procfile.argv(commands.pop("release"), environment)
        self.ports = {name: port if name == "web" and port else free_port() for name in commands}
        self.processes = {name: self._process(folder, name, command) for name, command in commands.items()}

    def _process(self, folder: Path, name: str, command: str) -> Process:
        environment = {**self._environment, "PORT": str(self.ports[name])}
        return Process(
            name,
            procfile.argv(command, environment),
            environment=environment,
            folder=PROJECT,
            log=folder / "logs" / f"{name}.log",
            pid_file=folder / "pids" / name,
        )

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.ports['web']}"

    def prepare(self) -> str:
        """Run the line ``release`` to its end, and return what it says.

        Raises:
            PlaceError: It failed.
        """
        done = subprocess.run(  # noqa: S603 - from the Procfile
            self._release, cwd=PROJECT, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PlaceError(f"{' '.join(self._release)} failed:\n{done.stderr}")
        return done.stdout.strip()

    def start(self) -> None:
        for process in self.processes.values():
            process.start()

    def up(self) -> bool:
        """Whether every process answers."""
        paths = {"web": "/", "gateway": None, "exporter": "/metrics"}
        urls = {name: f"http://127.0.0.1:{port}{paths.get(name, '/readyz')}" for name, port in self.ports.items()}
        urls["gateway"] = self._environment["EXAMPLE_GATEWAY"] + "/ledger"
        # A beat that stands by is as ready as one that leads: both say so.
        return all(_answers(url) for url in urls.values())

    def wait(self, ended: Callable[[], bool]) -> bool:
        """Look after all until every one answers; ``False`` if *ended* first.

        Raises:
            PlaceError: One does not come up.
        """
        deadline = time.monotonic() + _UP
        while not self.up():
            if ended():
                return False
            for process in self.processes.values():
                if process.exit_code is not None:
                    wrote = process.log.read_text(errors="replace")[-2000:]
                    raise PlaceError(f"{process.name} {process.how_it_ended()} and wrote:\n{wrote}")
            if time.monotonic() > deadline:
                raise PlaceError(f"not all came up within {_UP:.0f} s; their logs are in {process.log.parent}.")
            time.sleep(0.1)
        return True

    def look_after(self) -> None:
        """Bury who died, and start again who is wanted, after a pause. To be called again and again."""
        now = time.monotonic()
        for process in self.processes.values():
            if process.again_at is not None:
                if now >= process.again_at:
                    process.start()
                    self._say(f"{process.name} is started again, pid {process.pid}")
            elif process.exit_code is not None and process.wanted:
                process.bury()
                process.again_at = now + PAUSE
                self._say(f"{process.name} {process.how_it_ended()}; it is started again in {PAUSE:.0f} s")

    def end(self, hurry: Callable[[], bool]) -> None:
        """Ask all to end, and end those that do not."""
        for process in self.processes.values():
            process.ask_to_end()
        deadline = time.monotonic() + _GRACE
        while any(process.pid for process in self.processes.values()):
            if hurry() or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        for process in self.processes.values():
            process.bury()


def _answers(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (HTTPError, OSError):
        return False
