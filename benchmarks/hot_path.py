"""What one task costs us in each process, by itself: microseconds that do not depend on the machine's load.

    python -m benchmarks.hot_path

Four steps of one no-op task, each the fastest of several rounds of CPU time, plain
and hardened in processes of their own: publishing, taking a message off the broker
and handing it to the pool (parent), the pipe (pickle both ways), and running it (child).
"""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

from celery import Celery

STEPS = ("publish", "receive", "pipe", "run")
_ROUNDS, _TASKS = 7, 2000


def fastest(step: Callable[[Any], object], make: Callable[[], list[Any]]) -> float:
    """Microseconds of CPU for one *step*, in the fastest round."""
    best = float("inf")
    for _ in range(_ROUNDS):
        items = make()
        started = time.process_time()
        for item in items:
            step(item)
        best = min(best, (time.process_time() - started) / len(items))
    return best * 1e6


def measure(side: str) -> dict[str, float]:
    """One side, in this process."""
    from celery.app.trace import fast_trace_task, setup_worker_optimizations
    from celery.worker import state
    from celery.worker.consumer import Consumer
    from kombu.transport.virtual import Message

    logging.disable(logging.CRITICAL)
    app = Celery("bench", broker="memory://")
    app.conf.update(task_ignore_result=True, task_acks_late=True, task_reject_on_worker_lost=True)
    base, consumer_class = app.Task, Consumer
    if side == "hardened":
        from celery_hardened import HardenedTask, harden
        from celery_hardened.pipeline.consumer import compose_consumer

        app.conf.hardened_dead_letter_store = "memory"
        harden(app)
        base, consumer_class = HardenedTask, compose_consumer(Consumer)

    @app.task(base=base, name="bench.noop")
    def noop(order: str) -> None:
        """Do nothing with *order*."""

    setup_worker_optimizations(app, "bench@host")
    app.amqp.queues.select_add("celery")

    pool = MagicMock(num_processes=2, is_green=False)
    consumer = consumer_class(
        lambda request: request.execute_using_pool(pool), app=app, hostname="bench@host", pool=pool,
        controller=MagicMock(), timer=MagicMock(),
    )  # fmt: skip
    consumer.controller.state.revoked = set()
    consumer.event_dispatcher = consumer.task_consumer = None
    consumer.disable_rate_limits, consumer.on_task_message = True, set()
    consumer.update_strategies()
    receive = consumer.create_task_handler()

    channel = app.connection().channel()
    noop.apply_async(("o-1",))
    payload = json.dumps(channel._get("celery"))

    def messages() -> list[Any]:
        state.reserved_requests.clear()
        state.requests.clear()
        made = [Message(json.loads(payload), channel=channel) for _ in range(_TASKS)]
        for message in made:
            message.accept = {"application/json"}
        return made

    found = {"publish": fastest(lambda _: noop.apply_async(("o-1",)), lambda: [None] * 300)}
    found["receive"] = fastest(receive, messages)
    arguments = pool.apply_async.call_args.kwargs["args"]
    found["pipe"] = fastest(lambda one: pickle.loads(pickle.dumps(one)), lambda: [arguments] * _TASKS)
    packed = pickle.dumps(arguments)
    found["run"] = fastest(
        lambda one: fast_trace_task(*one),
        lambda: [pickle.loads(packed) for _ in range(_TASKS)],
    )
    return found


def main() -> None:
    """Measure both sides, taking turns, and print."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    sides: dict[str, dict[str, float]] = {}
    for side in ("plain", "hardened") * 2:
        command = [sys.executable, "-m", "benchmarks.hot_path", side]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        known = sides.setdefault(side, answer)
        sides[side] = {step: min(known[step], answer[step]) for step in STEPS}
    print(f"{'step':10} {'plain':>8} {'hardened':>9} {'more':>7}   microseconds of CPU a task")
    for step in STEPS:
        plain, hardened = sides["plain"][step], sides["hardened"][step]
        print(f"{step:10} {plain:8.1f} {hardened:9.1f} {hardened - plain:7.1f}")
    worker = sum(sides["hardened"][step] - sides["plain"][step] for step in STEPS[1:])
    print(f"in the worker, all processes: {worker:.1f} us more a task")


if __name__ == "__main__":
    main()
