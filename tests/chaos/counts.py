"""Forty thousand tasks at full speed, and every number of the worker's page beside the truth.

::

    python -m tests.chaos.counts --pool prefork --tasks 40000

A private server, one worker, and work of which the bodies note how it ends (`tests.support.counts`). Most are tasks
that do nothing; one in a hundred of each other kind is among them: failures, retries, rejects, and in prefork
processes that kill themselves and runs into both limits. In prefork each process is replaced after 20 tasks
(``--recycle``). It ends with 0 if no number differs, and prints how many there were.

A ``kill -9`` of the whole worker is not part of it: its counters are gone with it, as those of any process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.soak_producer import project
from tests.support.counts import COUNTS, EVERYWHERE, PROCESSES, Counts, wait_for
from tests.support.health import Probed
from tests.support.redis_server import RedisServer
from tests.support.worker import POOLS, WorkerProcess

#: Of each kind that is no plain success: one in so many.
_RARE: Final = 100

#: Tasks that take their time, so fewer of them: one in so many.
_SLOW: Final = 2000


def plan_of(pool: str, tasks: int) -> dict[str, int]:
    """How often each task is sent."""
    rare, slow = max(1, tasks // _RARE), max(1, tasks // _SLOW)
    plan = dict.fromkeys(EVERYWHERE, rare)
    if pool == "prefork":
        plan |= dict.fromkeys(PROCESSES, slow) | {"poisonous": 1}
    elif pool == "gevent":
        plan |= {"hard_limit": slow, "listed_limit": slow}
    left = tasks - sum(plan.values())
    return plan | {"ok": plan["ok"] + left // 2, "plain": plan["plain"] + left - left // 2}


def run(options: argparse.Namespace, directory: Path) -> bool:
    """One run; is there no difference?"""
    server = RedisServer(directory / "server")
    server.start()
    probed, out = Probed(directory / "health"), directory / "out"
    out.mkdir()
    env = {
        "BROKER_URL": server.database(),
        "RESULT_URL": server.database(),
        "RECORDS_URL": server.database(),
        "QUEUE": "counts",
        "KEY_PREFIX": "counts",
        "OUT": str(out),
        "LEASE": "5",
        "RECYCLE": str(options.recycle if options.pool == "prefork" else 0),
        **probed.env,
    }
    worker = WorkerProcess(
        "counts", directory / "worker", COUNTS, pool=options.pool, concurrency=options.concurrency, env=env
    )
    try:
        with project(directory / "producer", COUNTS, env) as module:
            counts = Counts(module, out, probed)
            plan = plan_of(options.pool, options.tasks)
            began = time.monotonic()
            for name, number in plan.items():
                counts.send(name, number)
            _say(f"{options.tasks} tasks sent in {time.monotonic() - began:.0f} s")
            began = time.monotonic()
            worker.start()
            worker.wait_ready()
            wait_for(counts, plan, within=options.within)
            counts.send_expired(50)
            counts.send_revoked(50)
            counts.send_unknown(50)
            counts.send_malformed(50)
            counts.send_replayed(50)
            if options.pool in ("prefork", "gevent"):
                counts.send_terminated()
            wait_for(counts, plan, within=options.within)
            took = time.monotonic() - began
            differences = counts.difference()
            counts.check_the_rest()
            _tell(counts, differences, took)
            return not differences
    finally:
        worker.kill_group()
        server.stop()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tell(counts: Counts, differences: object, took: float) -> None:
    truth, page = counts.truth(), counts.page()
    by_outcome: Counter[str] = Counter()
    for (_, outcome), number in truth.items():
        by_outcome[outcome] += number
    for outcome, number in sorted(by_outcome.items(), key=lambda pair: -pair[1]):
        _say(f"{outcome:>14} {number}")
    lost = sum(page.of("pool_children_lost_total").values())
    _say(f"{sum(truth.values())} deliveries in {took:.0f} s, {sum(truth.values()) / took:.0f} a second")
    _say(f"{lost:.0f} processes lost; letters and waits as they are")
    _say(f"differences: {differences or 'none'}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", choices=POOLS, default="prefork")
    parser.add_argument("--tasks", type=int, default=40_000)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--recycle", type=int, default=20, help="tasks after which a process of prefork is replaced")
    parser.add_argument("--within", type=float, default=1800.0, help="seconds until it is given up")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="counts-") as directory:
        return 0 if run(options, Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())
