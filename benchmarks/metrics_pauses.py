"""What ``hardened_gc_freeze`` changes: how long garbage collections stop a worker's processes, and CPU a task.

Both workers are up at once and take turns of two seconds, the other being stopped. Each collection notes itself from
inside, by the CPU that it took; nothing else runs in its process meanwhile.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

from redis import Redis

from benchmarks.interleaved import Ratio, turns
from benchmarks.metrics_cpu import exact_cpu
from benchmarks.metrics_scrape import APP, TASKS, USED, messages, quantiles
from tests.support.redis_server import RedisServer
from tests.support.until import until
from tests.support.worker import WorkerProcess

SIDES = (FROZEN, PLAIN) = ("frozen", "plain")

#: Seconds of a turn.
TURN = 2.0

_NOTED = """
import gc, os, time

_out = os.open(os.environ["PAUSES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
_main, _began = os.getpid(), 0.0

def _note(phase, info):
    global _began
    if phase == "start":
        _began = time.thread_time()
    elif info["generation"] == 2:
        where = "main" if os.getpid() == _main else "child"
        os.write(_out, f"{where} {time.thread_time() - _began}\\n".encode())

gc.callbacks.append(_note)
"""


class _Side:
    """A worker that stands still unless it is its turn."""

    def __init__(self, name: str, directory: Path, url: str, made: list[bytes]) -> None:
        self._client, self._made, self._pauses = Redis.from_url(url), made, directory / name / "pauses"
        self.worker = WorkerProcess(
            name,
            directory / name,
            f"{_NOTED}\n{APP}\napp.conf.hardened_gc_freeze = {name == FROZEN}\n",
            env={"BROKER": url, "HTTP": "127.0.0.1:0", "PAUSES": str(self._pauses)},
            args=["--loglevel", "CRITICAL"],
        )
        self.cpu: list[float] = []
        """Seconds a task, of each turn."""

    def start(self) -> None:
        self._fill()
        self.worker.start()
        until(lambda: self._left() < len(self._made) * 3 / 4, within=300, what="the worker to be warm")
        self._pauses.write_text("")  # those of its start stop nobody
        self.worker.pause()

    def turn(self) -> None:
        self._fill()
        self.worker.resume()
        left, cpu, began = self._left(), exact_cpu(self.worker.pid), monotonic()
        sleep(max(0.0, began + TURN - monotonic()))
        cpu = exact_cpu(self.worker.pid) - cpu
        self.worker.pause()
        self.cpu.append(cpu / max(1, left - self._left()))

    def pauses(self, where: str) -> list[float]:
        lines = [line.split() for line in self._pauses.read_text().splitlines()]
        return [float(seconds) for process, seconds in lines if process == where]

    def stop(self) -> None:
        self.worker.resume()
        self.worker.kill()
        self._client.close()

    def _left(self) -> int:
        return int(self._client.llen("celery"))

    def _fill(self) -> None:
        while self._left() < len(self._made):
            self._client.rpush("celery", *self._made)


def measure_pauses(server: RedisServer, directory: Path, *, rounds: int) -> None:
    """Both sides by turns, and a line for each process of each."""
    made = messages(server.database(), USED)
    with ExitStack() as stack:
        sides = {name: _Side(name, directory, server.database(), made) for name in SIDES}
        for side in sides.values():
            stack.callback(side.stop)
            side.start()
        for name in turns(SIDES, rounds):
            sides[name].turn()
        frozen, plain = sides[FROZEN], sides[PLAIN]
        print(f"\nFull garbage collections, prefork 2, {TASKS} tasks: CPU of each")
        for name, side in sides.items():
            for where in ("main", "child"):
                took = side.pauses(where)
                told = quantiles(took) if len(took) > 1 else f"{len(took)} of them: {took}"
                print(f"  {name:6} {where:5} {told}; {sum(took):.2f} s in all", flush=True)
        print(f"  CPU a task, frozen / plain: {Ratio.of(frozen.cpu, plain.cpu)}", flush=True)
