"""The app of beats that end, or freeze, at a named point of a tick: ``AT``, at its ``NTH`` time, by signal ``HOW``."""

import os
import signal
from pathlib import Path

from celery import Celery
from celery.signals import task_received

from celery_hardened import HardenedTask, harden
from celery_hardened.beat.leader_store import LeaderStore
from celery_hardened.beat.leader_store import Taken as Led
from celery_hardened.beat.store import BeatStore, NotLeaderError
from celery_hardened.pipeline.beat import Beat
from celery_hardened.pipeline.beat_book import Book
from celery_hardened.pipeline.beat_elsewhere import BrokerMessages
from celery_hardened.pipeline.beat_message import BeatMessages
from celery_hardened.pipeline.beat_settle import Settling
from tests.support.notes import note

OUT = Path(os.environ["OUT"])

app = Celery("proj", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    task_ignore_result=True,
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=30.0,
    hardened_beat_ttl=float(os.environ.get("TTL", "2")),
    hardened_beat_history=10_000,
    hardened_beat_grace=600.0,  # so long may one beat after the other take to start, and each slot still runs by itself
    beat_schedule=eval(os.environ["SCHEDULES"]),
)
harden(app)


class Own(HardenedTask):
    abstract = True

    def apply_async(self, args=None, kwargs=None, **options):
        """Nobody may take a short cut around it."""
        return super().apply_async(args, kwargs, **options)


@task_received.connect
def given(request, **_):
    note("given", request.id)


def ran(task):
    run = task.execution
    note("runs", run.schedule, round(run.slot.timestamp() * 1000), task.request.id, run.missed)


@app.task(bind=True, base=HardenedTask)
def tick(self):
    ran(self)


@app.task(bind=True, base=Own)
def own(self):
    ran(self)


# --- points -----------------------------------------------------------------------------------------------

AT, NTH = os.environ.get("AT", ""), int(os.environ.get("NTH", "3"))
HOW = signal.Signals[os.environ.get("HOW", "SIGKILL")]
passed = 0


def at(point):
    """End or freeze here, once in the life of this process."""
    global passed
    if point != AT:
        return
    passed += 1
    if passed == NTH:
        (OUT / f"was {point}").touch()
        os.kill(os.getpid(), HOW)


def around(cls, name, what, fits=lambda *_: True, answers=lambda _: True):
    """Two points: before and after the method *name*, of the calls that *fit*."""
    inner = getattr(cls, name)

    def method(self, *args, **kwargs):
        fit = fits(*args)
        if fit:
            at(f"before {what}")
        answer = inner(self, *args, **kwargs)
        if fit and answers(answer):
            at(f"after {what}")
        return answer

    setattr(cls, name, method)


def refusals(inner):
    def method(*args, **kwargs):
        try:
            return inner(*args, **kwargs)
        except NotLeaderError:
            note("refused", os.getpid())
            raise

    return method


def claims(_, steps):
    return any('"pending"' in step.new and '"pending"' not in step.old for step in steps)


def confirms(_, steps):
    return any('"pending"' in step.old and '"pending"' not in step.new for step in steps)


setattr(BeatStore, "take", refusals(BeatStore.take))  # noqa: B010
around(LeaderStore, "acquire", "lead", answers=lambda answer: isinstance(answer, Led))
around(LeaderStore, "renew", "renewal")
around(LeaderStore, "release", "release")
around(Beat, "_open", "open")
around(Beat, "_look", "look")
around(Book, "due", "decide", answers=bool)
around(Beat, "_wait", "wait")
around(Settling, "settle", "settle")
# One write: the template's messages, and those of Celery's own path, whose script runs inside of it.
around(BeatStore, "take", "fire", fits=lambda _, steps: any(len(step.messages) for step in steps))
around(BeatMessages, "publish", "publish by the path")
# Three steps.
around(BeatStore, "take", "claim", fits=claims)
around(BrokerMessages, "publish", "publish")
around(BeatStore, "take", "confirm", fits=confirms)
