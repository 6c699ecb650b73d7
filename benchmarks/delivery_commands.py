"""What is said to Redis for one no-op task, from the fetch to the ack.

The server's own counters (`commandstats`, `total_commands_processed`) count a command
the same whether a client sent it or a script ran it. MONITOR tells them apart, and slows
the server: so these runs are not those that are timed. Round trips are the requests
the server has read off sockets (`total_reads_processed`): a pipeline is one.
"""

from __future__ import annotations

from collections import Counter

from redis import Redis

from benchmarks.delivery_bench import Bench
from benchmarks.delivery_throughput import QUICK_SHAPES, emptying

_END = "bench-end"
#: Rarer ones are idle waiting, renewing and sweeping: summed up.
_SHOWN = 0.02


def measure(bench: Bench, *, tasks: int) -> None:
    """The usual shapes, one run a side."""
    print(f"\nCommands: a no-op task's share, counted over {tasks}")
    for shape in QUICK_SHAPES:
        for side in bench.sides:
            sent: Counter[str] = Counter()
            scripted: Counter[str] = Counter()
            with emptying(bench, side, shape, tasks) as seen:
                own = str(seen.client.client_info()["addr"])
                with Redis(connection_pool=seen.client.connection_pool) as ear, ear.monitor() as monitor:
                    reads, count = seen.reads(), seen.left()
                    seen.wait(0)
                    reads = seen.reads() - reads
                    seen.client.echo(_END)
                    # Read only now: the server has kept it, and we took no CPU from the worker.
                    for said in monitor.listen():
                        if _END in said["command"]:
                            break
                        name = said["command"].split(" ", 1)[0].upper()
                        if said["client_type"] == "lua":
                            scripted[name] += 1
                        elif f"{said['client_address']}:{said['client_port']}" != own:
                            sent[name] += 1
            pool, concurrency, prefetch = shape
            print(
                f"{pool} {concurrency}, prefetch {prefetch}, {side}: {reads / count:.2f} round trips, "
                f"{sent.total() / count:.2f} commands sent, {scripted.total() / count:.2f} inside scripts"
            )
            for what, calls in (("sent", sent), ("in scripts", scripted)):
                named = {name: number / count for name, number in calls.most_common()}
                shown = [f"{name} {share:.2f}" for name, share in named.items() if share >= _SHOWN]
                rest = sum(share for share in named.values() if share < _SHOWN)
                if shown:
                    print(f"    {what}: {', '.join(shown)}, others {rest:.3f}", flush=True)
