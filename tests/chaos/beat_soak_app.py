"""The app of the beat soak: tasks that say which slot they run for.

Its text is copied into the directories of beats and workers. Each process appends to a file of its own,
``$OUT/<pid>``, a line an event::

    g <id> <redelivered>                                     a worker was given this message
    s <slot, ms> <schedule> <id> <missed> <redelivered>      a body starts
    e <slot, ms> <schedule> <id> 0 0                         it ends
"""

import os
import random
import time
from pathlib import Path

from celery import Celery
from celery.signals import task_received

from celery_hardened import HardenedTask, harden
from tests.chaos.beat_soak_plan import ENTRIES

app = Celery("proj", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_default_queue="soak",
    task_ignore_result=True,
    result_expires=None,  # or Celery's own clean-up is one more schedule, due at 04:00
    worker_send_task_events=False,
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_beat_ttl=float(os.environ["TTL"]),
    hardened_beat_history=100_000,
    hardened_lease=5.0,
    hardened_max_worker_deaths=1_000_000,
    # Once a server is back, it is to be seen soon.
    broker_transport_options={"socket_timeout": 5.0} if os.environ["BROKER_URL"].startswith("redis") else {},
    beat_schedule={name: entry.configured() for name, entry in ENTRIES.items()},
)
harden(app)

_pid = _file = 0


def note(*words):
    """One line, one write."""
    global _pid, _file
    if _pid != os.getpid():
        _pid = os.getpid()
        _file = os.open(Path(os.environ["OUT"]) / str(_pid), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(_file, (" ".join(map(str, words)) + "\n").encode())


def say(kind, task, schedule, slot, missed):
    again = int(bool((task.request.delivery_info or {}).get("redelivered")))
    note(kind, round(slot * 1000), schedule, task.request.id, missed, again)


@task_received.connect
def given(request, **_):
    note("g", request.id, int(bool(request.delivery_info.get("redelivered"))))


class Own(HardenedTask):
    abstract = True

    def apply_async(self, args=None, kwargs=None, **options):
        """Nobody may take a short cut around it."""
        return super().apply_async(args, kwargs, **options)


def run(task, seconds=0.0):
    known = task.execution
    say("s", task, known.schedule, known.slot.timestamp(), known.missed)
    time.sleep(seconds)
    say("e", task, known.schedule, known.slot.timestamp(), 0)


@app.task(bind=True, base=HardenedTask)
def tick(self):
    run(self)


@app.task(bind=True, base=Own)
def own(self):
    run(self)


@app.task(bind=True, base=HardenedTask)
def slow(self):
    """Often longer than the second until the next slot."""
    run(self, random.Random(self.request.id).uniform(0.1, 2.5))


@app.task(bind=True)
def plain(self):
    """Contained only."""
    known = self.request.headers["hardened"]
    say("s", self, known["schedule"], known["slot"], known.get("missed", 0))
    say("e", self, known["schedule"], known["slot"], 0)
