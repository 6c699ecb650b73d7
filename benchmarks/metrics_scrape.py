"""How long a scrape takes of a worker that is busy and knows 500 tasks."""

from __future__ import annotations

import os
import statistics
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

from celery import Celery
from redis import Redis

from celery_hardened import harden
from celery_hardened.metrics.render import FRESH
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.until import until
from tests.support.worker import WorkerProcess

TASKS = 500

#: How many of them run all the time. All of them is the most that a page can be; few apps are so even.
USED = 100

APP = f"""
import os
from celery import Celery
from celery_hardened import HardenedTask, harden

app = Celery("bench", broker=os.environ["BROKER"])
app.conf.update(task_ignore_result=True, hardened_http=os.environ["HTTP"])
harden(app)

def body(number):
    if number % 50 == 0:
        raise TypeError(number)

for number in range({TASKS}):
    app.task(base=HardenedTask, name=f"bench.task_{{number}}")(body)
"""


def quantiles(seconds: Sequence[float]) -> str:
    """Median, 99th of 100 and worst, in milliseconds."""
    steps = statistics.quantiles(seconds, n=100, method="inclusive")
    p50, p99, worst = (value * 1000 for value in (steps[49], steps[98], max(seconds)))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {worst:.1f} ms of {len(seconds)}"


def messages(url: str, used: int) -> list[bytes]:
    """Some of each of *used* tasks, as a producer sends them; each number is met by each kind of end."""
    app = harden(Celery("bench", broker=url, set_as_current=False))
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(TASKS * 8):
            app.send_task(f"bench.task_{number % used}", (number // used * 25 + 25,), producer=producer)
    app.close()
    with Redis.from_url(url) as client:
        made: list[bytes] = client.lrange("celery", 0, -1)
        client.flushdb()
    return made


def measure_scrape(server: RedisServer, directory: Path, *, scrapes: int) -> None:
    """A worker that always has something to do, scraped as often as its page is made anew."""
    for used in (USED, TASKS):
        _measure(server, directory / str(used), scrapes=scrapes, used=used)


def _measure(server: RedisServer, directory: Path, *, scrapes: int, used: int) -> None:
    url, http = server.database(), f"127.0.0.1:{free_port()}"
    made = messages(server.database(), used)
    worker = WorkerProcess(
        "scraped", directory, APP, concurrency=2, env={"BROKER": url, "HTTP": http}, args=["--loglevel", "CRITICAL"]
    )
    with Redis.from_url(url) as client:
        worker.start()
        try:
            client.rpush("celery", *made)
            until(lambda: client.llen("celery") < len(made) / 4, within=300, what="each task to have been run")
            took, page = [], b""
            for _ in range(scrapes):
                if client.llen("celery") < len(made):
                    client.rpush("celery", *made)
                began = monotonic()
                with urllib.request.urlopen(f"http://{http}/metrics", timeout=60) as answer:
                    page = answer.read()
                took.append(monotonic() - began)
                sleep(FRESH + 0.05)
            if not client.llen("celery"):
                raise SystemExit("the worker had nothing to do")
        finally:
            worker.stop()
    lines = page.count(b"\n")
    what = f"{TASKS} tasks, {used} of them used: {lines} lines, {len(page) / 1000:.0f} kB"
    print(f"\nScrape of a busy worker, prefork 2, {what}")
    print(f"  {quantiles(took)}; load {os.getloadavg()[0]:.1f}", flush=True)
