"""The server, the workers behind a proxy each, and every way to do them harm."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.chaos.soak_ledger import Fault, Kind
from tests.chaos.soak_producer import QUEUES
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker import WorkerProcess

APP: Final = Path(__file__).with_name("soak_app.py").read_text()

#: How often each is drawn; restarts are placed, not drawn.
_WEIGHTS: Final[dict[Kind, int]] = {"child": 40, "group": 25, "stop": 12, "cut": 23}


def plan(dice: random.Random, *, kills: int, restarts: int) -> list[Kind]:
    """The faults of a soak in their order: each kind by its weight, restarts evenly between them."""
    kinds: list[Kind] = []
    left = max(0, kills - restarts)
    for kind, weight in _WEIGHTS.items():
        kinds += [kind] * max(1, round(weight * left / 100))
    dice.shuffle(kinds)
    kinds = (kinds + dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=left))[:left]
    for number in range(restarts):
        kinds.insert(round((number + 1) * kills / (restarts + 1)), "restart")
    return kinds


class Fleet:
    """
    One server with AOF and some prefork workers, each of which reaches it by a line of its own.

    Attributes:
        faults: What was done, complete once `calm` was called.
        exits: Workers that ended though nobody killed them: when, who, exit code and last line.
    """

    def __init__(
        self,
        directory: Path,
        *,
        server: str,
        delivery: str,
        lease: float,
        workers: int,
        concurrency: int,
        dice: random.Random,
    ) -> None:
        self.faults: list[Fault] = []
        self.exits: list[tuple[float, str, int | None, str]] = []
        self.out = directory / "notes"
        self.out.mkdir(parents=True)
        self._lease = lease
        self._dice = dice
        self._delivery = delivery
        self._over: dict[int, tuple[float, Callable[[], None]]] = {}  # worker: when what is done to it ends, and how
        binary = shutil.which("redis-server") if server == "redis" else None
        assert binary or server != "redis", "redis-server is not installed"
        self.server = RedisServer(directory / "server", binary=Path(binary) if binary else None, persist=True)
        self.server.start()
        assert self.server.port is not None
        self.proxies = [TcpProxy(self.server.port) for _ in range(workers)]
        self.workers = [
            WorkerProcess(
                f"w{number}",
                directory / f"w{number}",
                APP,
                concurrency=concurrency,
                queues=QUEUES,
                env=self.environment(proxy.port),
                # One with a single message in reserve for each child, one with several, and so on.
                args=["--loglevel", "WARNING", "--prefetch-multiplier", str((1, 4)[number % 2])],
            )
            for number, proxy in enumerate(self.proxies)
        ]

    def environment(self, port: int | None) -> dict[str, str]:
        """What the app module reads, for one who reaches the server at *port*."""
        options: dict[str, Any] = {}
        if self._delivery == "stock":
            # As soon as the lease: what is left for dead comes back as early as it can.
            options = {
                "visibility_timeout": self._lease,
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
            }
        return {
            "BROKER_URL": f"redis://127.0.0.1:{port}/1",
            "OUT": str(self.out),
            "TRANSPORT_OPTIONS": json.dumps(options),
            "HARDENED": json.dumps({"redis_delivery": self._delivery, "lease": self._lease}),
        }

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    # --- faults -----------------------------------------------------------------------------

    def harm(self, kind: Kind, consuming: set[int]) -> bool:
        """
        Do one fault to whom the dice say; ``False`` if nobody is fit for it now.

        Args:
            consuming: Process ids of workers that have run tasks: those that still boot are let be.
        """
        if kind == "restart":
            self._restart()
            return True
        fit = [
            number
            for number, worker in enumerate(self.workers)
            if worker.running and worker.pid in consuming and (kind == "group" or number not in self._over)
        ]
        return bool(fit) and getattr(self, f"_{kind}")(self._dice.choice(fit))

    def _child(self, number: int) -> bool:
        worker = self.workers[number]
        children = worker.children()
        if not children:
            return False
        begun, victim = time.monotonic(), self._dice.choice(children)
        with contextlib.suppress(ProcessLookupError):  # it was being replaced just now
            os.kill(victim, signal.SIGKILL)
            self._note("child", begun, number, child=victim)
            return True
        return False

    def _group(self, number: int) -> bool:
        worker = self.workers[number]
        begun = time.monotonic()
        worker.kill_group()
        self._note("group", begun, number)
        self._end(number)
        worker.start()
        return True

    def _stop(self, number: int) -> bool:
        worker, begun = self.workers[number], time.monotonic()
        worker.pause()

        def resume() -> None:
            worker.resume()
            self._note("stop", begun, number)

        self._over[number] = (begun + self._lease + self._dice.uniform(1.0, 3.0), resume)
        return True

    def _cut(self, number: int) -> bool:
        proxy, begun = self.proxies[number], time.monotonic()
        how = self._dice.choice(("reset", "close", "down", "silence"))
        getattr(proxy, how)()
        if how in ("reset", "close"):
            self._note("cut", begun, number)
            return True

        def heal() -> None:
            proxy.heal()
            self._note("cut", begun, number)

        self._over[number] = (begun + self._dice.uniform(0.5, 2.5), heal)
        return True

    def _restart(self) -> None:
        begun = time.monotonic()
        self.server.kill()
        self.server.start()
        self.faults.append(Fault("restart", begun, time.monotonic()))

    def _note(self, kind: Kind, begun: float, number: int, *, child: int | None = None) -> None:
        self.faults.append(Fault(kind, begun, time.monotonic(), self.workers[number].pid, child))

    # --- between faults -----------------------------------------------------------------------

    def tend(self) -> None:
        """End the faults whose time is up, and start again whoever ended."""
        for number, (when, _) in list(self._over.items()):
            if time.monotonic() >= when:
                self._end(number)
        for worker in self.workers:
            if not worker.running:
                last = worker.log().strip().rpartition("\n")[2]
                self.exits.append((time.monotonic(), worker.name, worker.returncode, last))
                worker.kill_group()
                worker.start()

    def _end(self, number: int) -> None:
        if number in self._over:
            self._over.pop(number)[1]()

    def calm(self) -> None:
        """End every fault."""
        for number in list(self._over):
            self._end(number)

    def stop(self) -> None:
        """End everything."""
        self.calm()
        for worker in self.workers:
            worker.stop()
        for proxy in self.proxies:
            proxy.stop()
        self.server.kill()
