"""A Django site with all that is around it: web server, worker and beats, each a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from redis import Redis

from celery_hardened.settings import Settings
from tests.fixtures.beats import BeatProcess
from tests.support import django_live_settings, django_settings
from tests.support.beat_claims import is_claimed
from tests.support.notes import notes
from tests.support.ports import free_port
from tests.support.proc import Proc
from tests.support.redis_server import RedisServer
from tests.support.until import until
from tests.support.worker import WorkerProcess, lay_out

#: What worker and beat import as ``proj``.
SOURCE = "from tests.support.django_live_app import app\n"

SCHEDULER = "hardened-django"


class LiveSite:
    """
    The shop's site. ``start`` it, and ``stop`` it after use.

    Args:
        directory: For files of all processes, and the SQLite database.
        redis: For messages, records and results, each in a database of its own.
        postgres_url: Of an empty database; ``None``: SQLite.
        letters: ``hardened_dead_letter_store``: ``redis`` or ``django``.
        beats: So many.
        host: What all processes take for the name of their machine, in a shop with lifelike schedules; ``None``: its
            own name, and schedules for tests.
    """

    def __init__(
        self,
        directory: Path,
        redis: RedisServer,
        *,
        postgres_url: str | None = None,
        letters: str = "redis",
        beats: int = 2,
        host: str | None = None,
    ) -> None:
        self.directory = directory
        self.out = directory / "out"
        self.out.mkdir(parents=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {
            "DJANGO_SETTINGS_MODULE": django_live_settings.__name__,
            django_settings.FOLDER_VARIABLE: str(directory),
            "BROKER_URL": redis.database(),
            "RECORDS_URL": redis.database(),
            "RESULT_URL": redis.database(),
            "LETTERS": letters,
            "OUT": str(self.out),
            **lay_out(directory / "web", SOURCE),
            **({django_settings.POSTGRES_VARIABLE: postgres_url} if postgres_url else {}),
        }
        argv = [sys.executable, "-m", "django", "runserver", "--noreload", "--insecure", f"127.0.0.1:{self.port}"]
        self.web = Proc("web", argv, cwd=directory / "web", env=self.env)
        named = ["--hostname", f"worker@{host}"] if host else []
        self.worker = WorkerProcess("worker", directory / "worker", SOURCE, concurrency=4, env=self.env, args=named)
        self.beats = [
            BeatProcess(name, directory / name, SOURCE, scheduler=SCHEDULER, env=self.env)
            for name in (f"beat-{number}" for number in range(1, beats + 1))
        ]

        self._rows = ["lifelike"] if host else []
        for process in self.processes if host else ():
            process.cwd.mkdir(exist_ok=True)
            (process.cwd / "sitecustomize.py").write_text(f"import socket\nsocket.gethostname = lambda: {host!r}\n")

    @property
    def processes(self) -> list[Proc]:
        return [self.web, self.worker, *self.beats]

    def start(self) -> None:
        """Make the tables, then start all, and wait until the site answers, the worker consumes and a beat leads."""
        self.run("-m", "tests.support.django_live_rows", *self._rows)
        for process in self.processes:
            process.start()
        until(self._answers, within=60, what="the site to answer")
        self.worker.wait_ready()
        until(lambda: self.leader is not None, within=60, what="a beat to lead")

    def stop(self) -> None:
        """End them all, however they stand."""
        for process in self.processes:
            process.kill_group()

    def run(self, *argv: str) -> None:
        """Run a Python command in the site's environment to its end."""
        probe = Proc("run", [sys.executable, *argv], cwd=self.directory, env=self.env)
        done = subprocess.run(probe.argv, env=probe.env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-4000:]

    @property
    def leader(self) -> BeatProcess | None:
        """The beat that says that it leads; the last such word of a beat that was killed does not count."""
        found = [beat for beat in self.beats if beat.running and beat.leads]
        return found[0] if found else None

    @property
    def is_idle(self) -> bool:
        """No message waits, is on its way to the worker, or is held by it."""
        # In one transaction: between two questions a message may go from the one place to the other.
        with Redis.from_url(self.env["BROKER_URL"]) as redis, redis.pipeline() as pipe:
            return not any(pipe.llen("shop").hlen("unacked").keys("*delivery:fetching:*").execute())

    def has_claimed(self, schedule: str) -> bool:
        """Is a run of *schedule* with a beat still?"""
        return is_claimed(self.env["RECORDS_URL"], Settings().key_prefix, schedule)

    def notes(self, name: str) -> list[str]:
        """What tasks have noted so far."""
        return notes(self.out, name)

    def _answers(self) -> bool:
        assert self.web.running, self.web.log()
        # Whatever proxy is set in the environment does not lead to our own machine.
        with build_opener(ProxyHandler({})).open(f"{self.url}/admin/login/", timeout=10) as answer:
            return bool(answer.status == 200)
