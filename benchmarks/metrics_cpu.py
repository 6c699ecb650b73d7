"""What counting costs: CPU of a worker for a no-op task, and tasks a second; and whether the counts are right.

The workers of all sides are up at once, and all but one are stopped (SIGSTOP). They take turns of a second, so what
else the machine does meets all of them alike.
"""

from __future__ import annotations

import re
import statistics
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

from benchmarks.delivery_bench import HARDENED, Bench, check
from benchmarks.delivery_throughput import Emptying
from benchmarks.interleaved import cpu_seconds
from tests.support.ports import free_port
from tests.support.proc import Proc
from tests.support.until import until
from tests.support.worker import WorkerProcess

NONE, OURS, EVENTS = SIDES = ("none", "ours", "events")
#: Messages that a worker has done before it is measured; that it is given at one time; below which it gets more.
WARM, FILL, LOW = 400, 8000, 6000

#: Seconds of a turn, and of how many turns one meets a scrape. Prometheus comes every 15 s, or less often.
TURN, SCRAPED = 1.0, 5

_TASKS = r'^celery_hardened_tasks_total\{task="bench\.noop",queue="\w+",outcome="success"\} (\S+)'
_FLOWER = r'^flower_events_total\{(?=[^}]*type="task-succeeded")[^}]*\} (\S+)'


@dataclass
class Side:
    """One way to count, before a worker starts.

    Args:
        conf: Settings of the worker.

        url: Where its counts are shown, if anywhere.

        pattern: A regular expression for the count of succeeded tasks there.

        beside: A process that runs beside the worker, and whose CPU is told.
    """

    conf: dict[str, Any]
    url: str = ""
    pattern: str = ""
    beside: Proc | None = None
    loglevel: str = "WARNING"

    def scrape(self) -> str:
        """The page, as Prometheus would have it; empty if there is none."""
        if not self.url:
            return ""
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            return str(answer.read(), "utf-8")

    def counted(self) -> float | None:
        """How many tasks succeeded, by its page. ``None``: it has none."""
        if not self.url:
            return None
        return sum(float(value) for value in re.findall(self.pattern, self.scrape(), re.MULTILINE))


def prepared(name: str, bench: Bench, url: str, *, flower: str | None) -> Side:
    """The side *name* against the database *url*."""
    if name == NONE:
        return Side({"hardened_metrics": False})
    port = free_port()
    if name == OURS:
        conf = {"hardened_metrics": True, "hardened_http": f"127.0.0.1:{port}"}
        return Side(conf, f"http://127.0.0.1:{port}/metrics", _TASKS)
    conf = {"hardened_metrics": False, "worker_send_task_events": True}
    if flower is None:
        return Side(conf)
    argv = [flower, "-m", "celery", "--broker", url, "flower", f"--port={port}", "--address=127.0.0.1"]
    beside = Proc(f"flower-{port}", argv, cwd=bench.directory, env={"FLOWER_UNAUTHENTICATED_API": "true"})
    beside.start()
    side = Side(conf, f"http://127.0.0.1:{port}/metrics", _FLOWER, beside)
    until(lambda: _answers(side), within=60, what="Flower to answer")
    return side


def _answers(side: Side) -> bool:
    try:
        side.scrape()
    except OSError:
        return False
    return True


@dataclass
class Running:
    """A worker of one side, which stands still unless it is its turn."""

    name: str
    side: Side
    worker: WorkerProcess
    seen: Emptying
    refill: Callable[[], int]
    given: int
    cpu: list[float] = field(default_factory=list)
    """Microseconds of CPU a task, of each turn."""

    rate: list[float] = field(default_factory=list)
    """Tasks a second, of each turn."""

    def turn(self, *, scraped: bool) -> None:
        """Run for a while, and note what it took."""
        while self.seen.left() < LOW:
            self.given += self.refill()
        self.worker.resume()
        count, cpu, began = self.seen.left(), exact_cpu(self.worker.pid), monotonic()
        if scraped and not self.side.beside:
            self.side.scrape()
        sleep(max(0.0, began + TURN - monotonic()))
        cpu, seconds = exact_cpu(self.worker.pid) - cpu, monotonic() - began
        count -= self.seen.left()
        self.worker.pause()
        check(self.worker, monotonic() + 1)
        self.cpu.append(cpu / count * 1e6)
        self.rate.append(count / seconds)

    def end(self) -> str:
        """Let it do what is left; answers how many tasks its page does not know of."""
        self.worker.resume()
        self.seen.wait(0)
        beside = ""
        if self.side.beside is not None:
            _settled(self.side)
            beside = f"; Flower {cpu_seconds(self.side.beside.pid) / self.given * 1e6:.0f} us a task"
        counted = self.side.counted()
        return "-" if counted is None else f"{self.given - counted:.0f} of {self.given}{beside}"


def exact_cpu(pid: int) -> float:
    """Seconds on a processor, of a process and those below it. To the nanosecond, where ticks are of 10 ms."""
    root = psutil.Process(pid)
    total = 0
    for process in (root, *root.children(recursive=True)):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def _settled(side: Side) -> None:
    """Wait until a listener has read all that it will get: it says the same for two seconds."""
    last, since = side.counted(), monotonic()

    def same() -> bool:
        nonlocal last, since
        if (now := side.counted()) != last:
            last, since = now, monotonic()
        return monotonic() - since > 2

    until(same, within=120, what="the listener to have read all events")


@contextmanager
def running(bench: Bench, name: str, side: Side, url: str) -> Iterator[Running]:
    """A worker that has done some hundred tasks, and stands still."""
    bench.fill(url, FILL)

    def refill() -> int:
        bench.fill(url, FILL)
        return FILL

    conf = bench.conf(HARDENED, url) | side.conf
    worker = bench.ready_worker(name, conf, pool="prefork", concurrency=2, loglevel=side.loglevel)
    seen = Emptying(url, worker, within=3600)
    try:
        seen.wait(FILL - WARM)
        worker.pause()
        yield Running(name, side, worker, seen, refill, FILL)
    finally:
        worker.resume()
        worker.stop()
        seen.client.close()
        if side.beside is not None:
            side.beside.stop()


def compare(bench: Bench, sides: Mapping[str, Callable[[str], Side]], base: str, rounds: int) -> None:
    """All sides by turns of a second, and a line for each; ratios to *base*. *sides* are made with a database's URL."""
    with ExitStack() as stack:
        all_running = {}
        for name, make in sides.items():
            url = bench.server.database()
            all_running[name] = stack.enter_context(running(bench, name, make(url), url))
        for number in range(rounds):
            for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
                all_running[name].turn(scraped=number % SCRAPED == 0)
        print(f"{'':8}{'worker us':>10}  {'ratio':20}{'tasks/s':>8}  {'ratio':20}not counted")
        for name, one in all_running.items():
            line = name.ljust(8)
            for what, width in (("cpu", 10), ("rate", 8)):
                values, bases = getattr(one, what), getattr(all_running.get(base), what, None)
                line += f"{statistics.median(values):{width}.0f}  "
                line += f"{spread(values, bases) if bases is not None and name != base else '-':20}"
            print(f"{line}{one.end()}", flush=True)


def spread(upper: Sequence[float], lower: Sequence[float]) -> str:
    """Median of the pairs, and between what half of them lie."""
    quotients = [u / v for u, v in zip(upper, lower, strict=True)]
    first, median, third = statistics.quantiles(quotients, n=4)
    return f"{median:.3f} ({first:.3f}-{third:.3f})"


def measure(bench: Bench, *, rounds: int, flower: str | None, sides: Sequence[str] = SIDES) -> None:
    """Nothing counted, counted by us, and events."""
    print(f"\nCounting: no-op tasks, prefork 2, {rounds} turns of {TURN:g} s each; medians; ratios to none (quartiles)")
    print(f"ours is scraped every {SCRAPED * TURN:g} s; events are -E and {'Flower' if flower else 'no listener'}")
    compare(bench, {name: partial(prepared, name, bench, flower=flower) for name in sides}, NONE, rounds)


def measure_logs(bench: Bench, *, rounds: int) -> None:
    """No line for a task, our two, and Celery's own two, into a file. Without metrics."""
    print(
        f"\nLines of tasks at INFO: prefork 2, {rounds} turns of {TURN:g} s each; medians; ratios to none (quartiles)"
    )
    off = {"hardened_metrics": False}
    sides = {
        NONE: Side(off),
        OURS: Side(off | {"hardened_task_logs": True}, loglevel="INFO"),
        "celery": Side(off | {"hardened_task_logs": False}, loglevel="INFO"),
    }
    compare(bench, {name: partial(_made, side) for name, side in sides.items()}, NONE, rounds)


def _made(side: Side, _: str) -> Side:
    return side
