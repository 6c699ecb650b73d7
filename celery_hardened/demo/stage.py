"""Everything that runs for the demo: a Valkey, the gateway, two workers, a beat, a page; and how it all ends.

Nothing is written outside one temporary folder, and everything that was
started is ended, whatever happens. A signal never interrupts a step: it is
noticed while the stage waits, and nearly all of the time it waits.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Final

from celery_hardened.demo import project
from celery_hardened.demo.diary import Diary, Event
from celery_hardened.demo.page.live import LivePage
from celery_hardened.demo.page.look import Look, Watched
from celery_hardened.demo.producer import Producer
from celery_hardened.demo.screen import Screen
from celery_hardened.demo.spawned import Spawned
from celery_hardened.demo.telling import told
from celery_hardened.embedded import EmbeddedValkey
from celery_hardened.metrics.address import Address

#: The workers' node names.
WORKERS: Final = ("w1", "w2")

#: What the beat is called. One of it: each costs as much time to start as a worker.
BEAT: Final = "beat"

#: Seconds until a fact that does not come true is taken for untrue; several times what a slow machine needs.
PATIENCE: Final = 45.0

#: Seconds a worker has to finish what it has begun.
_GRACE: Final = 20.0

#: Seconds between two looks.
_GLANCE: Final = 0.03

_PROJECT: Final = Path(project.__file__).parent
_PACKAGES: Final = _PROJECT.parents[2]
_CELERY: Final = (sys.executable, "-m", "celery", "-A", "shop")
_WORKER: Final = ("--concurrency", "2", "--loglevel", "WARNING", "--without-gossip", "--without-mingle")


class StageError(Exception):
    """The demo itself could not be set up or go on."""


class Interrupted(BaseException):
    """Somebody wants the demo to end. ``args[0]`` is the signal's number."""


class Stage:
    """A context manager; inside it everything runs, after it nothing does.

    Args:
        port: Of the page with its numbers; 0 is any that is free.
    """

    def __init__(self, screen: Screen, *, port: int = 0) -> None:
        self.screen = screen
        self.scene = "setting up"
        self.began = time.time()
        self.directory = Path(tempfile.mkdtemp(prefix="celery-hardened-demo-"))
        self.diary = Diary(self.directory / "record.jsonl", self._tell)
        self.workers: list[Spawned] = []
        self.spawned: list[Spawned] = []
        self.shop: Producer
        self.page: LivePage
        self._port = port
        self._watched: tuple[Watched, ...] = ()
        self._valkey = EmbeddedValkey(self.directory / "valkey", persist=True)
        self._asked_to_end: int | None = None

    # --- setting up ---------------------------------------------------------------------------

    def __enter__(self) -> Stage:
        try:
            self._set_up()
            self.deploy("v1")
            # Nobody waits for it: it starts while the first scene waits for its retries.
            self._watch("beat", BEAT, *_CELERY, "beat", "--scheduler", "hardened", "--loglevel", "WARNING")
        except BaseException:
            self.close(gently=False)
            raise
        return self

    def _set_up(self) -> None:
        if not entry_points(group="celery.commands", name="hardened"):
            raise StageError("celery does not know its command `hardened`: install the package (pip install -e .)")
        self._valkey.start()
        # Whatever Celery settings the user's shell holds are not meant for this shop.
        for name in [name for name in os.environ if name.startswith(("CELERY_", "HARDENED_", "SHOP_"))]:
            del os.environ[name]
        os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = self._valkey.url
        os.environ["SHOP_RECORD"] = str(self.diary.path)
        self.shop = Producer(self._valkey.url)
        self.say("valkey", f"{self.shop.server_version} on port {self._valkey.port}, every write goes to disk")

        gateway = self._spawn("gateway", sys.executable, "gateway.py", output=self.diary.path)
        self._require([gateway], lambda: bool(self.diary.of("listening")))
        os.environ["SHOP_GATEWAY"] = f"http://127.0.0.1:{self.diary.of('listening')[0].fields['port']}/"
        os.environ["no_proxy"] = "127.0.0.1"
        # A pool that is killed leaves folders behind, which go with this one.
        os.environ["TMPDIR"] = str(self.directory)
        self._open_page()

    def _open_page(self) -> None:
        look = Look(
            self.shop.hardening,
            [self.shop.queue],
            began=self.began,
            watched=lambda: self._watched,
            told=lambda: (self.scene, len(self.shop.sent)),
        )
        try:
            self.page = LivePage(look, Address("127.0.0.1", self._port))
        except OSError as problem:
            raise StageError(f"the page cannot be at port {self._port}: {problem.strerror}") from problem
        self.page.start()
        self.say("page", f"its numbers, live: {self.page.url}")

    def deploy(self, version: str) -> None:
        """Have the workers finish what they have begun, and start them anew with this release of the shop."""
        if self.workers:
            self.say("workers", "stopping in good order")
            self.until(lambda: self.shop.waiting == 0, within=_GRACE)
            self.page.look()  # what they have counted ends with them
        self._ask_workers_to_stop()
        self.until(lambda: self.unharmed == 0, within=_GRACE)
        for worker in self.workers:
            worker.kill_all()

        self.say(f"shop {version}", f"starting {len(WORKERS)} × `celery -A shop worker --concurrency 2`")  # noqa: RUF001
        wanted = len(self.diary.of("ready")) + len(WORKERS)
        self.workers = [
            self._watch(
                "worker", name, *_CELERY, "worker", "--hostname", f"{name}@shop", *_WORKER, SHOP_VERSION=version
            )
            for name in WORKERS
        ]
        self._require(self.workers, lambda: len(self.diary.of("ready")) >= wanted)
        self.say(f"shop {version}", "workers are ready")

    # --- what scenes do -----------------------------------------------------------------------

    def until(self, fact: Callable[[], bool], *, within: float = PATIENCE) -> bool:
        """Show what happens until *fact* is true; ``False`` if the time is up before.

        Raises:
            Interrupted: Somebody asked the demo to end.
        """
        deadline = time.monotonic() + within
        while True:
            if self._asked_to_end is not None:
                raise Interrupted(self._asked_to_end)
            came_true = fact()
            self.diary.read_on()
            if came_true or time.monotonic() > deadline:
                return came_true
            time.sleep(_GLANCE)

    def celery(self, *arguments: str) -> bool:
        """Run ``celery -A shop …`` and show what it says; whether its exit code is 0."""
        self.screen.command(f"celery -A shop {shlex.join(arguments)}")
        said = self.directory / f"command-{len(self.spawned)}.txt"
        command = self._spawn("command", *_CELERY, *arguments, output=said, errors=said)
        self.until(lambda: command.exit_code is not None)
        self.screen.output(command.wrote())
        return command.exit_code == 0

    def say(self, who: str, what: str) -> None:
        """Show something the stage itself has done."""
        self.screen.moment(time.time() - self.began, who, what)

    @property
    def unharmed(self) -> int:
        """Workers that are the process they were when they were started."""
        return sum(worker.exit_code is None for worker in self.workers)

    def logs(self, most: int = 15) -> str:
        """The last log lines of each worker, without their tracebacks."""
        logged = {
            worker.name: [line for line in worker.wrote().splitlines() if line.startswith("[")]
            for worker in self.workers
        }
        return "\n".join(f"{name} {line}" for name, lines in logged.items() for line in lines[-most:])

    def _tell(self, event: Event) -> None:
        words = told(event)
        if words is not None:
            self.screen.moment(event.at - self.began, event.id or "message", *words)

    def _spawn(
        self, name: str, *argv: str, output: Path | None = None, errors: Path | None = None, **env: str
    ) -> Spawned:
        log = self.directory / f"{name}.log"
        path = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH")]))
        process = Spawned(
            name,
            argv,
            cwd=_PROJECT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **env},
            output=output or log,
            errors=errors or log,
        )
        self.spawned.append(process)
        return process

    def _watch(self, kind: str, name: str, *argv: str, **env: str) -> Spawned:
        """Start a process that tells the page of itself, in the place of one of the same name."""
        health = self.directory / f"health-{len(self.spawned)}"
        told = {"HARDENED_HTTP": "127.0.0.1:0", "HARDENED_HEALTH_DIR": str(health), **env}
        process = self._spawn(name, *argv, output=None, errors=None, **told)
        others = [one for one in self._watched if one.name != name]
        watched = Watched(key=health.name, name=name, kind=kind, pid=process.pid, health=health)
        self._watched = tuple(sorted([*others, watched], key=lambda one: (one.kind != "worker", one.name)))
        return process

    def _require(self, processes: list[Spawned], fact: Callable[[], bool]) -> None:
        """Wait until *fact* is true, or one of the processes it depends on is no more."""
        self.until(lambda: fact() or any(process.exit_code is not None for process in processes))
        if not fact():
            wrote = "\n".join(f"{process.name} ({process.exit_code}): {process.wrote()}" for process in processes)
            raise StageError(f"{' and '.join(process.name for process in processes)} did not come up.\n{wrote}")

    # --- the end ------------------------------------------------------------------------------

    def ask_to_end(self, signal_number: int, _frame: object = None) -> None:
        """Have the demo end soon. For ``signal.signal``."""
        self._asked_to_end = signal_number

    def go_on_to_the_end(self) -> None:
        """What was asked is done: what follows is the usual end, which may be asked to be quicker."""
        self._asked_to_end = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(gently=kind is None)

    def close(self, *, gently: bool) -> None:
        """End all that runs and remove the folder; not *gently*: at once."""
        if gently:
            self._ask_workers_to_stop()
            deadline = time.monotonic() + _GRACE
            while self.unharmed and self._asked_to_end is None and time.monotonic() < deadline:
                time.sleep(_GLANCE)
        if hasattr(self, "page"):
            self.page.stop()
        for process in self.spawned:
            process.kill_all()
        if hasattr(self, "shop"):
            self.shop.close()
        self._valkey.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def leftovers(self) -> list[str]:
        """What is still there after the end, by name; nothing if all is well."""
        left = [process.name for process in self.spawned if process.anything_left]
        left += ["page"] * (hasattr(self, "page") and self.page.running)
        return left + ["valkey"] * self._valkey.running + [str(self.directory)] * self.directory.exists()

    def _ask_workers_to_stop(self) -> None:
        for worker in self.workers:
            worker.ask_to_stop()
