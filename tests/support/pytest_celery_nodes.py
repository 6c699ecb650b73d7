"""pytest-celery's containers on processes.

Each of its container classes wraps one object of docker-py's and asks it for
``id, name, status, attrs, reload, restart, kill, logs, exec_run``.
`ProcessHandle` answers for a process instead, so its nodes, clusters, setups
and assertions work as they are, without a container engine.
"""

from __future__ import annotations

import gc
import shlex
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil
from celery.result import AsyncResult
from pytest_celery import (
    CeleryTestBackend,
    CeleryTestWorker,
    CeleryWorkerContainer,
    RabbitMQContainer,
    RedisContainer,
    RedisTestBackend,
)

from tests.support.proc import Proc


class Service(Protocol):
    """A process that can be started and ended: a server of ours, or a `Proc`."""

    @property
    def running(self) -> bool: ...
    def log(self) -> str: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class ProcessHandle:
    """What pytest-docker-tools needs of a docker-py container, answered for a process."""

    def __init__(self, name: str, service: Service, *, id: str | None = None) -> None:
        self.name = name
        self.service = service
        self.id = id or uuid.uuid4().hex
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": "127.0.0.1", "Env": []},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
            "HostConfig": {"PortBindings": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self.service.running else "exited"

    def reload(self) -> None:
        """Nothing is cached."""

    def kill(self, signal: str | int | None = None) -> None:
        """SIGTERM ends it in good order; anything else at once."""
        if signal in ("SIGTERM", 15):
            self.service.stop()
        else:
            self.service.kill()

    def restart(self, timeout: float = 10) -> None:
        self.service.stop()
        self.service.start()

    def logs(self) -> bytes:
        return self.service.log().encode()


class _ProcessContainer:
    """For the container classes: the address comes from us, not from a container network."""

    service: Any
    url = ""
    port = 0

    @classmethod
    def of(cls, name: str, service: Service, *, url: str = "", port: int = 0, id: str | None = None) -> Any:
        """The container class, standing for *service*."""
        container = cls(ProcessHandle(name, service, id=id))  # type: ignore[call-arg]
        container.service, container.url, container.port = service, url, port
        return container

    @property
    def host_url(self) -> str:
        return self.url


class ValkeyNode(_ProcessContainer, RedisContainer):  # type: ignore[misc]
    """A Valkey server."""


class ResultBackend(RedisTestBackend):  # type: ignore[misc]
    """Results, which are told at the end that their server is gone, lest they ask it for something."""

    def teardown(self) -> None:
        # pytest-celery's own asks every object there is for its class, and what another test has left may raise then:
        # Django's settings, or a shared task, where nobody has configured or registered them.
        gc.collect()
        for one in gc.get_objects():
            if issubclass(type(one), AsyncResult):
                one.backend = None
        CeleryTestBackend.teardown(self)


class RabbitMQNode(_ProcessContainer, RabbitMQContainer):  # type: ignore[misc]
    """One virtual host of a RabbitMQ node."""


class WorkerNode(_ProcessContainer, CeleryWorkerContainer):  # type: ignore[misc]
    """A worker process."""

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {}

    def teardown(self) -> None:
        self.service.kill()

    def exec_run(self, command: str | Sequence[str]) -> tuple[int, bytes]:
        """Run a command in the worker's folder and environment."""
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if words[0] == "python":
            words[0] = sys.executable
        done = subprocess.run(
            words,
            cwd=self.service.cwd,
            env=self.service.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout


class NodeWorker(Proc):
    """
    ``celery worker`` in a folder that pytest-celery's initial content was laid out in.

    Args:
        id: The container id it goes by; its node name ends with the first twelve characters.
        content: File contents by path, as pytest-celery generates them.
        command: pytest-celery's container command.
    """

    def __init__(
        self, id: str, directory: Path, content: Mapping[str, bytes], command: Sequence[str], env: Mapping[str, str]
    ) -> None:
        for path, text in content.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(text)
        argv = [word.replace("%h", id[:12]) for word in command]
        super().__init__(
            "worker", [sys.executable, "-m", *argv], cwd=directory, env={**env, "PYTHONPATH": _path(directory)}
        )

    def start(self) -> None:
        """Start it and wait until it consumes."""
        seen = len(self.log())
        super().start()
        self.wait_for_log(" ready.", within=60, since=seen)

    def kill(self) -> None:
        """As a killed container: all its processes at once."""
        self.kill_group()


class TestWorker(CeleryTestWorker):  # type: ignore[misc]
    """A worker whose processes are its own, not all of the machine's."""

    __test__ = False

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        root = psutil.Process(self.container.service.pid)
        rows = [process.as_dict(columns) for process in (root, *root.children(recursive=True))]
        return [row for row in rows if all(row.get(name) == value for name, value in (filters or {}).items())]

    def pids(self) -> set[int]:
        """Process ids of the worker and its pool."""
        return {row["pid"] for row in self.get_running_processes_info(["pid"])}


def _path(directory: Path) -> str:
    return f"{directory}:{Path(__file__).parents[2]}"
