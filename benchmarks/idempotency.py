"""What keys cost: no-op tasks with and without them, beside plain Celery and two packages, interleaved in one run.

::

    python -m benchmarks.idempotency                      # both measures, some ten minutes
    python -m benchmarks.idempotency --delivery stock     # only the keys differ from plain Celery
    python -m benchmarks.idempotency --only steps         # seconds

- ``tasks``: publishes and runs of six sides, in pools solo and prefork 2: tasks a second, CPU a task, and
  requests to the store of keys, which has a server of its own
- ``steps``: microseconds of CPU of what a key or a payload store adds where the arguments are small

Ratios are of pairs that ran in the same round: median (lowest-highest).
The servers are private ones on this machine, without persistence.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hot_path import fastest
from benchmarks.idempotency_bench import HARDENED, IDEMPOTENT, PLAIN, SIDES, Run, Sides
from benchmarks.interleaved import Ratio, turns
from tests.support.redis_server import RedisServer

MEASURES = ("tasks", "steps")
POOLS = ("solo", "prefork")


def main() -> None:
    """Run what was asked for, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MEASURES, help="may be given more than once")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each side (4)")
    parser.add_argument("--tasks", type=int, default=2000, help="tasks of a run (2000)")
    parser.add_argument("--pool", action="append", choices=POOLS, help="one pool alone")
    parser.add_argument("--side", action="append", choices=SIDES, help="some sides only; plain is always among them")
    parser.add_argument("--delivery", choices=("hardened", "stock"), default="hardened", help="of the hardened sides")
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis")
    options = parser.parse_args()
    chosen = options.only or MEASURES
    sides = [side for side in SIDES if side == PLAIN or not options.side or side in options.side]
    if "tasks" in chosen:
        program = shutil.which("redis-server") if options.server == "redis" else None
        binary = Path(program) if program else None
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            broker, store = (RedisServer(Path(name) / role, binary=binary) for role in ("broker", "store"))
            with broker, store:
                bench = Sides(Path(name), broker, store, options.delivery)
                for pool in options.pool or POOLS:
                    runs: dict[str, list[Run]] = defaultdict(list)
                    for side in turns(sides, options.rounds):
                        runs[side].append(bench.run(side, pool=pool, tasks=options.tasks))
                    title = f"{pool}, {options.tasks} no-op tasks, {options.rounds} rounds"
                    show(f"{title}, {options.delivery} delivery of the hardened sides", runs)
    if "steps" in chosen:
        steps()


def show(title: str, runs: dict[str, list[Run]]) -> None:
    """One block a pool: medians, ratios of pairs, and what the store was asked."""
    print(f"\n{title}")
    print(f"{'publish':18}{'a second':>9} {'/ plain':20}{'CPU us':>7} {'/ plain':20}{'trips':>7}{'refused':>9}")
    for side, done in runs.items():
        refused = [run.refused_trips for run in done if run.refused_trips is not None]
        print(
            f"{side:18}{_column(runs, side, 'publish_rate')}{_column(runs, side, 'publish_cpu', 7)}"
            f"{_median(done, 'publish_trips'):7.3f}{f'{statistics.median(refused):9.3f}' if refused else ''}"
        )
    print(f"{'run':18}{'a second':>9} {'/ plain':20}{'CPU us':>7} {'/ plain':20}{'trips':>7}  commands in the store")
    for side, done in runs.items():
        named = sorted(done[-1].commands.items(), key=lambda item: -item[1])
        print(
            f"{side:18}{_column(runs, side, 'rate')}{_column(runs, side, 'cpu', 7)}{_median(done, 'trips'):7.3f}  "
            + ", ".join(f"{name} {share:.2f}" for name, share in named if share >= 0.02)
        )
    if HARDENED in runs and IDEMPOTENT in runs:
        print(f"CPU of a run, {IDEMPOTENT} / {HARDENED}: {_ratio(runs, IDEMPOTENT, HARDENED, 'cpu')}", flush=True)


def _column(runs: dict[str, list[Run]], side: str, measured: str, width: int = 9) -> str:
    return f"{_median(runs[side], measured):{width}.0f} {_ratio(runs, side, PLAIN, measured)!s:20}"


def _ratio(runs: dict[str, list[Run]], upper: str, lower: str, measured: str) -> Ratio:
    return Ratio.of(*([getattr(run, measured) for run in runs[side]] for side in (upper, lower)))


def _median(runs: list[Run], measured: str) -> float:
    return float(statistics.median(getattr(run, measured) for run in runs))


def steps() -> None:
    """Each step by itself, the fastest of several rounds."""
    from celery import Celery

    from celery_hardened import HardenedTask, harden
    from celery_hardened.hardening import Hardening
    from celery_hardened.key import BusinessKey, bind, fingerprint
    from celery_hardened.pipeline import payload
    from celery_hardened.serialized import plain

    app = Celery("bench", broker="memory://", set_as_current=False)
    app.conf.update(hardened_dead_letter_store="memory", hardened_payload_store="memory:")
    hardening = Hardening.expect(harden(app))

    def order(invoice_id: str, kind: str = "usual", **lines: object) -> None:
        """Has a signature."""

    invoice = app.task(order, base=HardenedTask, name="bench.invoice")

    args = ("0b51b1f0-6d4a-4d3e-9a55-cf8a4a0f6b0e",)
    kwargs: dict[str, Any] = {
        "kind": "late",
        "lines": [{"sku": f"a-{number}", "count": number, "price": number * 1.25} for number in range(5)],
        "address": {"street": "Long Street 12", "town": "Oldtown", "country": None},
    }
    bound = bind(invoice.name, invoice.run, args, kwargs)
    one = BusinessKey.of(invoice.run, "invoice_id")
    template = BusinessKey.of(invoice.run, key="invoice:{invoice_id}:{kind}")
    every = BusinessKey.of(invoice.run)
    measured: dict[str, Callable[[Any], object]] = {
        "bind the arguments": lambda _: bind(invoice.name, invoice.run, args, kwargs),
        "key of one argument": lambda _: one.digest(invoice.name, bound, otherwise=plain),
        "key of a template": lambda _: template.digest(invoice.name, bound, otherwise=plain),
        "key of all arguments": lambda _: every.digest(invoice.name, bound, otherwise=plain),
        "fingerprint of all arguments": lambda _: fingerprint(invoice.name, bound, otherwise=plain),
        "stash of small arguments": lambda _: payload.stash(hardening, invoice.name, args, kwargs, {}),
    }
    print("\nsteps, microseconds of CPU, on an order of five lines")
    for name, step in measured.items():
        print(f"  {name:30}{fastest(step, lambda: [None] * 2000):7.1f}")


if __name__ == "__main__":
    main()
