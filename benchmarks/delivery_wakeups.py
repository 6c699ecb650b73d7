"""200 idle consumers: what they cost, and how many of them one message wakes.

A consumer that wakes asks the server for something. So what is asked beyond the
idle rate, for one message, bounds the number of consumers that woke: about three
requests if one did, hundreds if all did.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass

from redis import Redis

from benchmarks.delivery_bench import APP, HARDENED, STOCK, Bench
from benchmarks.interleaved import cpu_seconds, turns
from tests.support.proc import Proc
from tests.support.worker import lay_out

CONSUMERS = """
import os, socket, sys, threading
from proj import app, note

def consume(number):
    with app.connection_for_read() as connection:
        def take(message):
            note(event="got", consumer=f"{os.getpid()}-{number}")
            message.ack()
        with app.amqp.TaskConsumer(connection.default_channel, on_message=take) as consumer:
            consumer.qos(prefetch_count=1)
            note(event="ready")
            while True:
                try:
                    connection.drain_events(timeout=1)
                except socket.timeout:
                    pass

app.finalize()
threads = [threading.Thread(target=consume, args=(number,)) for number in range(int(sys.argv[1]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

_PROCESSES = 4
_SETTLE = 3.0


@dataclass(frozen=True)
class Watched:
    """One side once: by the second while idle, and by the message."""

    requests: float
    commands: float
    consumers_cpu: float
    server_cpu: float
    extra_requests: float
    deliveries: float
    takers: int


def measure(bench: Bench, *, consumers: int, messages: int, rounds: int, seconds: float) -> None:
    """Both sides by turns."""
    found: dict[str, list[Watched]] = defaultdict(list)
    for side in turns(bench.sides, rounds):
        found[side].append(_watch(bench, side, consumers, messages, seconds))
    print(f"\nWake-ups: {consumers} idle consumers, {messages} messages one by one, {rounds} rounds, medians")
    rows = {
        "idle: requests a second": "requests",
        "idle: commands a second, scripts' included": "commands",
        "idle: CPU of the consumers, ms a second": "consumers_cpu",
        "idle: CPU of the server, ms a second": "server_cpu",
        "a message: requests beyond idle, its publish included": "extra_requests",
        "a message: deliveries": "deliveries",
        "consumers that got one": "takers",
    }
    print(f"{'':56}{'stock':>9}{'ours':>9}")
    for label, name in rows.items():
        line = f"{label:56}"
        for side in (STOCK, HARDENED):
            values = [getattr(one, name) for one in found[side]]
            line += f"{statistics.median(values):9.1f}" if values else f"{'-':>9}"
        print(line, flush=True)


def _watch(bench: Bench, side: str, consumers: int, messages: int, seconds: float) -> Watched:
    url = bench.server.database()
    (bench.directory / "consumers.py").write_text(CONSUMERS)
    environment = {**lay_out(bench.directory, APP), **bench.environment(side, bench.conf(side, url))}
    share = consumers // _PROCESSES
    argv = [sys.executable, str(bench.directory / "consumers.py"), str(share)]
    processes = [Proc(f"{side}-consumers-{n}", argv, cwd=bench.directory, env=environment) for n in range(_PROCESSES)]
    producer = bench.producer(url)
    client = Redis.from_url(url, single_connection_client=True)

    def counted() -> tuple[float, int, int, float, float]:
        info = client.info()
        return (
            time.monotonic(),
            int(info["total_reads_processed"]),
            int(info["total_commands_processed"]),
            sum(cpu_seconds(one.pid) for one in processes),
            float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
        )

    got: list[str] = []
    try:
        for process in processes:
            process.start()
        for _ in range(share * _PROCESSES):
            bench.notes.wait(120, f"the consumers of {side} to be ready", event="ready", who=side)
        for _ in range(2):  # the producer's connection is not what is measured
            producer.send_task("bench.noop", (0,))
            bench.notes.wait(30, "a first message to be got", event="got", who=side)
        time.sleep(_SETTLE)

        before = counted()
        time.sleep(seconds)
        after = counted()
        elapsed, reads, commands, cpu, server = (z - a for a, z in zip(before, after, strict=True))

        before = counted()
        for number in range(messages):
            producer.send_task("bench.noop", (number,))
            note = bench.notes.wait(30, "a message to be got", event="got", who=side)
            got.append(note["consumer"])
            pause = time.monotonic() + random.uniform(0.1, 0.3)
            while (left := pause - time.monotonic()) > 0:
                if again := bench.notes.next(left):
                    got.append(again["consumer"])
        after = counted()
    finally:
        for process in processes:
            process.kill_group()
        client.close()
        producer.close()
    idle = reads / elapsed * (after[0] - before[0])
    return Watched(
        requests=reads / elapsed,
        commands=commands / elapsed,
        consumers_cpu=cpu / elapsed * 1e3,
        server_cpu=server / elapsed * 1e3,
        extra_requests=(after[1] - before[1] - idle) / messages,
        deliveries=len(got) / messages,
        takers=len(set(got)),
    )
