"""Servers, workers, and beats behind proxies; every way to harm a beat."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from celery_hardened.beat.names import Keys
from celery_hardened.beat.record import Record
from celery_hardened.embedded import EmbeddedValkey
from tests.chaos.beat_soak_plan import BURST, BURST_EVERY
from tests.fixtures.beats import BeatProcess
from tests.support.ports import free_port
from tests.support.rabbitmq import RabbitMQ
from tests.support.tcp_proxy import TcpProxy
from tests.support.wallshift import WallShift
from tests.support.worker import WorkerProcess

APP: Final = Path(__file__).with_name("beat_soak_app.py").read_text()

#: How often each is drawn; restarts of servers and clocks an hour ahead are placed, not drawn.
WEIGHTS: Final = {
    "kill leader": 15,
    "kill standby": 6,
    "end leader": 8,
    "stop leader": 12,
    "stop in a burst": 14,
    "cut from Redis": 18,
    "cut from broker": 12,
    "clock back": 5,
}

HOUR: Final = 3600.0

#: Seconds. A burst that is so near is waited for.
NEAR: Final = 2.0


@dataclass(slots=True)
class Fault:
    kind: str
    at: float
    """Of the monotonic clock, as *until*."""
    until: float
    beat: str = ""
    more: str = ""


class Fleet:
    """One Redis with ``appendfsync always``, perhaps a RabbitMQ, two workers with lines that hold, and beats."""

    def __init__(self, directory: Path, *, broker: str, server: str, ttl: float, beats: int, dice: random.Random):
        self.faults: list[Fault] = []
        self.exits: list[str] = []
        self.out = directory / "notes"
        self.out.mkdir(parents=True)
        self.ttl = ttl
        self._dice = dice
        binary = shutil.which("redis-server") if server == "redis" else None
        assert binary or server != "redis", "redis-server is not installed"
        self.redis = EmbeddedValkey(
            directory / "redis",
            binary=Path(binary) if binary else None,
            # None that the kernel gives: while it is killed, the port would be another connection's.
            port=free_port(),
            persist=True,
            # The log of all writes is the ledger: it is never written anew.
            config={"auto-aof-rewrite-percentage": 0, "appendfsync": "always"},
        )
        self.redis.start()
        assert self.redis.port is not None
        self.rabbitmq = RabbitMQ(directory / "rabbitmq").start() if broker == "rabbitmq" else None
        self.keys = Keys("hardened")
        self.client = Redis.from_url(self.redis.url, socket_timeout=5)
        self.redis_lines = [TcpProxy(self.redis.port) for _ in range(beats)]
        self.broker_lines = [TcpProxy(self.rabbitmq.port) for _ in range(beats)] if self.rabbitmq else self.redis_lines
        self.clocks = [WallShift(directory / f"clock{number}") for number in range(beats)]
        self.beats = [
            BeatProcess(
                f"b{number}",
                directory / f"b{number}",
                APP,
                scheduler="hardened",
                env={
                    **self.environment(self.redis_lines[number].port, self.broker_lines[number].port),
                    **self.clocks[number].environment,
                },
            )
            for number in range(beats)
        ]
        near = self.environment(self.redis.port, self.rabbitmq.port if self.rabbitmq else self.redis.port)
        self.workers = [
            WorkerProcess(
                f"w{number}",
                directory / f"w{number}",
                APP,
                concurrency=3,
                queues=["soak"],
                env=near,
                args=["--loglevel", "WARNING"],
            )
            for number in range(2)
        ]
        self._over: dict[int, tuple[float, Callable[[], None]]] = {}  # beat: when what is done to it ends, and how

    def environment(self, redis: int, broker: int) -> dict[str, str]:
        """What the app module reads, for one who reaches the servers at these ports."""
        records = f"redis://127.0.0.1:{redis}/0"
        return {
            "RECORDS_URL": records,
            "BROKER_URL": f"amqp://guest:guest@127.0.0.1:{broker}//" if self.rabbitmq else records,
            "OUT": str(self.out),
            "TTL": str(self.ttl),
        }

    def start(self) -> None:
        for process in (*self.workers, *self.beats):
            process.start()

    # --- who leads --------------------------------------------------------------------------------

    def leader(self) -> int | None:
        """Which beat leads, as Redis has it."""
        with contextlib.suppress(OSError, RedisError):
            known = self.client.hget(self.keys.leader, "identity")
            if known is not None:
                pid = json.loads(known)["pid"]
                return next((n for n, beat in enumerate(self.beats) if beat.running and beat.pid == pid), None)
        return None

    def record(self, name: str) -> Record | None:
        text = self.client.hget(self.keys.records, name)
        return None if text is None else Record.parse(text)

    # --- faults -----------------------------------------------------------------------------------

    def harm(self, kind: str) -> bool:
        """Do one fault; ``False`` if nobody is fit for it now."""
        begun = time.monotonic()
        if kind in ("restart Redis", "restart broker"):
            server = self.redis if kind == "restart Redis" else self.rabbitmq
            assert server is not None
            server.kill()
            server.start()
            self.faults.append(Fault(kind, begun, time.monotonic()))
            return True
        leader = self.leader()
        if kind == "kill standby":
            fit = [n for n in range(len(self.beats)) if n not in (leader, *self._over)]
            number = self._dice.choice(fit) if fit else None
        elif kind.startswith("cut") and self._dice.random() < 0.25:
            number = self._dice.randrange(len(self.beats))
        else:
            number = leader
        if number is None or number in self._over:
            return False
        harm: Callable[[int, str], bool] = {
            "kill leader": self._kill,
            "kill standby": self._kill,
            "end leader": self._end_in_order,
            "stop leader": self._stop,
            "stop in a burst": self._stop_in_burst,
            "cut from Redis": self._cut,
            "cut from broker": self._cut,
            "clock back": self._step,
            "clock ahead": self._step,
        }[kind]
        with contextlib.suppress(OSError, RedisError):
            return harm(number, kind)
        return False

    def _kill(self, number: int, kind: str) -> bool:
        begun, beat = time.monotonic(), self.beats[number]
        beat.kill_group()
        self._again(number, kind, begun)
        return True

    def _end_in_order(self, number: int, kind: str) -> bool:
        begun, beat = time.monotonic(), self.beats[number]
        beat.stop()
        self._again(number, kind, begun)
        return True

    def _again(self, number: int, kind: str, begun: float) -> None:
        self.faults.append(Fault(kind, begun, time.monotonic(), self.beats[number].name))
        self._end(number)
        self.beats[number].start()

    def _stop(self, number: int, kind: str, more: str = "") -> bool:
        begun, beat = time.monotonic(), self.beats[number]
        beat.pause()

        def resume() -> None:
            beat.resume()
            self.faults.append(Fault(kind, begun, time.monotonic(), beat.name, more))

        self._over[number] = (begun + self.ttl + self._dice.uniform(1.0, 3.0), resume)
        return True

    def _stop_in_burst(self, number: int, kind: str) -> bool:
        """As soon as the first of a burst has moved on, or some moments later, stop who moves them."""
        first, clock = self.record("burst-000"), self.client.hget(self.keys.leader, "clock")
        if first is None or clock is None or first.cursor + BURST_EVERY - float(clock) > NEAR:
            return False
        deadline = time.monotonic() + 3 * NEAR
        while time.monotonic() < deadline:
            now = self.record("burst-000")
            if now is not None and now.cursor != first.cursor:
                time.sleep(self._dice.choice((0.0, 0.0, 0.02, 0.05, 0.1)))
                if number in self._over or self.leader() != number:
                    return False
                self.beats[number].pause()
                found = self.client.hmget(self.keys.records, [f"burst-{one:03}" for one in range(BURST)])
                moved = sum(text is not None and Record.parse(text).cursor >= now.cursor for text in found)
                return self._stop(number, kind, str(moved))
            self.tend()
            time.sleep(0.001)
        return False

    def _cut(self, number: int, kind: str) -> bool:
        begun = time.monotonic()
        line = (self.redis_lines if kind == "cut from Redis" else self.broker_lines)[number]
        how: str = self._dice.choice(("reset", "close", "down", "silence", "up", "down only"))
        if how in ("reset", "close"):
            getattr(line, how)()
            self.faults.append(Fault(kind, begun, begun, self.beats[number].name, how))
            return True
        if how == "up":
            line.silence("up")
        elif how == "down only":
            line.silence("down")
        else:
            getattr(line, how)()

        def heal() -> None:
            line.heal()
            self.faults.append(Fault(kind, begun, time.monotonic(), self.beats[number].name, how))

        self._over[number] = (begun + self._dice.choice((0.5, 2.0, self.ttl + 2.0)), heal)
        return True

    def _step(self, number: int, kind: str) -> bool:
        begun = time.monotonic()
        clock = self.clocks[number]
        clock.set(HOUR if kind == "clock ahead" else -HOUR)

        def right() -> None:
            clock.set(0.0)
            self.faults.append(Fault(kind, begun, time.monotonic(), self.beats[number].name))

        self._over[number] = (begun + self._dice.uniform(3.0, 15.0), right)
        return True

    # --- between faults ---------------------------------------------------------------------------

    def tend(self) -> None:
        """End the faults whose time is up, and start again whoever ended by itself."""
        for number, (when, _) in list(self._over.items()):
            if time.monotonic() >= when:
                self._end(number)
        for process in (*self.beats, *self.workers):
            if not process.running:
                last = process.log().strip().rpartition("\n")[2]
                self.exits.append(f"{process.name} with {process.returncode}: {last}")
                process.kill_group()
                process.start()

    def _end(self, number: int) -> None:
        if number in self._over:
            self._over.pop(number)[1]()

    def calm(self) -> None:
        """End every fault."""
        for number in list(self._over):
            self._end(number)

    def end_beats(self) -> None:
        """In good order, who leads last."""
        self.calm()
        leader = self.leader()
        for number in sorted(range(len(self.beats)), key=lambda number: number == leader):
            self.beats[number].stop()

    def waiting(self) -> int:
        """Messages that are not run yet."""
        if self.rabbitmq is not None:
            found: dict[str, Any] = self.rabbitmq.queue("/", "soak")
            return int(found.get("messages") or 0)
        return int(self.client.llen("soak")) + int(self.client.hlen("unacked"))

    def stop(self) -> None:
        """End everything."""
        for number in list(self._over):
            with contextlib.suppress(Exception):
                self._end(number)
        for process in (*self.beats, *self.workers):
            process.kill_group()
        for line in {*self.redis_lines, *self.broker_lines}:
            line.stop()
        if self.rabbitmq is not None:
            self.rabbitmq.destroy()
        self.redis.kill()


def plan(dice: random.Random, *, count: int, broker: str, restarts: int) -> list[str]:
    """*count* faults in their order: kinds by weight, restarts evenly between them, a clock ahead near the end."""
    weights = {kind: weight for kind, weight in WEIGHTS.items() if broker != "redis" or kind != "cut from broker"}
    kinds = list(weights)[:count]
    kinds += dice.choices(list(weights), list(weights.values()), k=max(0, count - len(kinds)))
    dice.shuffle(kinds)
    for number in range(restarts):
        kinds.insert(round((number + 0.5) * count / restarts), "restart Redis")
        if broker == "rabbitmq":
            kinds.insert(round((number + 1) * count / restarts), "restart broker")
    # From then on the clock of all beats goes at half speed until the others' have caught up with it.
    kinds.insert(round(len(kinds) * 0.8), "clock ahead")
    return kinds


def load() -> str:
    return "/".join(f"{value:.1f}" for value in os.getloadavg())
