"""The app of the soak: tasks that say when they start and when they are over.

Its text is copied into the workers' directories and imported by the producer. A pool
process appends to one file of its own, ``$OUT/<worker's pid>-<its own pid>``, a line an event::

    s <monotonic time> <task number> <attempt>      the body starts
    e ...                                           it ends
    r ...                                           it fails and asks for a retry
"""

import json
import os
import time
from pathlib import Path

from celery import Celery

from celery_hardened import HardenedTask, harden
from celery_hardened.settings import Settings

app = Celery("proj", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_default_queue="soak",
    task_ignore_result=True,
    worker_send_task_events=False,
    # Innocents die beside culprits, and here all are innocent.
    hardened_max_worker_deaths=1_000_000,
    hardened_death_delay=0.1,
    hardened_death_delay_max=1.0,
    hardened_retry_backoff=0.5,
    broker_transport_options=json.loads(os.environ["TRANSPORT_OPTIONS"]),
)
for name, value in json.loads(os.environ["HARDENED"]).items():
    if hasattr(Settings, name):
        app.conf[f"hardened_{name}"] = value
harden(app)

_pid = _file = 0


def note(kind, number, attempt):
    """One line, one write: monotonic time is one clock for all processes of a machine."""
    global _pid, _file
    if _pid != os.getpid():
        _pid = os.getpid()
        path = Path(os.environ["OUT"]) / f"{os.getppid()}-{_pid}"
        _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(_file, f"{kind} {time.monotonic():.4f} {number} {attempt}\n".encode())


def run(task, number, seconds, failures):
    attempt = task.request.retries
    note("s", number, attempt)
    if seconds:
        time.sleep(seconds)
    if attempt < failures:
        note("r", number, attempt)
        raise ConnectionError("the gateway is down")
    note("e", number, attempt)


@app.task(bind=True, base=HardenedTask)
def work(self, number, seconds, failures=0):
    run(self, number, seconds, failures)


@app.task(bind=True, base=HardenedTask, retry_backoff=6.0)
def patient(self, number, seconds, failures=0):
    """Its retries wait for so long that they wait in the broker."""
    run(self, number, seconds, failures)
