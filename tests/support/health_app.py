"""An app whose worker can be held up, or made deaf, from outside. Its text is copied into a worker's directory."""

import os
import time
from pathlib import Path

from celery import Celery
from celery.worker.control import control_command

from celery_hardened import HardenedTask, harden
from tests.support.notes import note
from tests.support.until import until

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_health_stall=float(os.environ.get("STALL", "5")),
    broker_connection_timeout=2.0,
    broker_transport_options={"socket_timeout": 2.0, "socket_connect_timeout": 2.0},
    beat_schedule={},
)
app.conf.update(eval(os.environ.get("CONF", "{}")))
harden(app)


@app.task(base=HardenedTask)
def nap(seconds):
    note("naps", "started")
    time.sleep(seconds)
    return os.getpid()


@app.task(base=HardenedTask)
def gated():
    """Runs until the test opens the gate."""
    note("naps", "started")
    until(Path(os.environ["OUT"], "gate").exists, within=120, what="the test to open the gate")


@control_command(args=[("seconds", float)])
def hold_up(state, seconds):
    """Hold up the loop that consumes, and nothing else of the process."""
    state.consumer.call_soon(time.sleep, seconds)


@control_command()
def deafen(state):
    """Lose the consumer, as no code should."""
    state.consumer.call_soon(state.consumer.task_consumer.cancel)
