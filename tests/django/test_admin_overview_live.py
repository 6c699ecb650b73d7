"""Each problem of the overview, provoked on real workers and beats; and that they cause none when all is well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from celery import Celery

from celery_hardened import Hardening
from celery_hardened.contrib.django.overview import watch
from celery_hardened.contrib.django.overview.facts import Facts
from celery_hardened.contrib.django.overview.problems import Limits, Pauses, problems
from celery_hardened.contrib.django.overview.watch import Watch, watch_of
from celery_hardened.metrics.rules.terms import Terms, Thresholds
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support import django_schedules
from tests.support.broker import Broker
from tests.support.client import listening
from tests.support.notes import notes
from tests.support.until import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)

#: Pauses that seconds cross; and longer than a busy machine takes for what is in order.
LIMITS = Limits(
    terms=Terms(app="proj", thresholds=Thresholds(stalled=4.0, oldest_age=4.0, stale=12.0)),
    pauses=Pauses(no_leader=3.0, no_consumer=2.0, not_consuming=3.0, silent=12.0),
)

SOURCE = '''
import os, time
from celery import Celery
from celery.worker.control import control_command
from celery_hardened import HardenedTask, harden
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=4.0,
    beat_schedule=eval(os.environ.get("SCHEDULES", "{}")),
)
harden(app)


@app.task(base=HardenedTask)
def fine():
    note("fine", 1)


@app.task(base=HardenedTask)
def broken():
    raise ValueError("broken")


@app.task(base=HardenedTask)
def nap(seconds):
    note("naps", seconds)
    time.sleep(seconds)


@control_command()
def deafen(state):
    """Lose the consumer, as no code should."""
    state.consumer.call_soon(state.consumer.task_consumer.cancel)


@control_command(args=[("seconds", float)])
def hold_up(state, seconds):
    """Hold up the loop that consumes, and nothing else of the process."""
    state.consumer.call_soon(time.sleep, seconds)
'''

OFTEN = {"SCHEDULES": repr({"often": {"task": "proj.fine", "schedule": 1.0, "grace": 2.0}})}


@pytest.fixture(autouse=True)
def no_schedules() -> Iterator[None]:
    django_schedules.clear("default")
    yield
    django_schedules.clear("default")


class Site:
    """What the page of *app* would tell now."""

    def __init__(self, app: Celery, out: Path) -> None:
        self.app = app
        self._out = out
        self.hardening = Hardening.expect(app)
        self.watch = Watch(watch_of(self.hardening).asks, patience=30.0)
        self.limits = LIMITS

    def notes(self, name: str) -> list[str]:
        return notes(self._out, name)

    @property
    def facts(self) -> Facts:
        return self.watch.look().facts

    def said(self) -> dict[str, str]:
        """Alert, or the first word of its key, and what is told of it."""
        found = problems(self.facts, self.limits)
        return {one.alert or one.key.partition(":")[0]: f"{one.what}; {one.extent}" for one in found}

    def wait(self, name: str, *, within: float = 60.0) -> str:
        return until(lambda: self.said().get(name, ""), within=within, every=0.3, what=f"{name} among the problems")

    def calm(self, *, within: float = 60.0) -> None:
        try:
            until(lambda: not self.said(), within=within, every=0.3, what="no problem at all")
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.said()}") from late

    def stays_calm(self) -> None:
        """Through several readings, and longer than any pause of these tests: no problem appears."""
        began = self.beats()
        until(lambda: self._turned(began), within=120.0, every=0.3, what="workers to have spoken four times")

    def beats(self) -> float:
        return max((one.record.began for one in self.workers()), default=0.0)

    def workers(self) -> Any:
        found = self.facts.workers
        return found.present if found else ()

    def _turned(self, began: float) -> bool:
        assert self.said() == {}
        return self.beats() - began >= 15.0


@pytest.fixture
def site(load_project: LoadProject, out: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    monkeypatch.setattr(watch, "FRESH", 0.0)
    return lambda **env: Site(load_project(SOURCE, env=env).app, out)


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_an_idle_and_a_working_system_are_well(
    broker: Broker, site: Callable[..., Site], start_worker: StartWorker, start_beat: StartBeat
) -> None:
    """No false alarm for seconds on end: a worker that idles, a leader, a schedule that fires, work that is done; and
    all of them are on the page."""
    often = {"SCHEDULES": OFTEN["SCHEDULES"].replace("2.0", "30.0")}  # a machine may stand still for seconds, too
    page = site(**often)
    page.limits = replace(LIMITS, terms=Terms(app="proj", thresholds=Thresholds(stalled=20.0, oldest_age=20.0)))
    start_worker(SOURCE)
    start_beat(SOURCE, env=often)
    until(lambda: page.notes("fine"), within=60.0, what="the schedule to have fired")
    page.calm()
    page.stays_calm()
    facts = page.facts
    (worker,) = page.workers()
    assert worker.record.name == "w1@test"
    assert worker.record.queues == (broker.queue,)
    assert worker.record.ended.keys() == {broker.queue}
    assert facts.beats is not None
    assert facts.beats.leader.leads
    assert facts.queues is not None
    assert broker.queue in facts.queues.reading.queues
    assert facts.schedules == 1


@redis
def test_what_runs_is_in_flight_and_who_stops_takes_leave(
    broker: Broker, site: Callable[..., Site], start_worker: StartWorker
) -> None:
    """A worker tells what it holds by queue; one that is told to stop is gone from the page, without a problem."""
    page = site()
    worker = start_worker(SOURCE)
    page.app.tasks["proj.nap"].delay(600)
    until(lambda: page.notes("naps"), within=60.0, what="the nap to have begun")
    until(
        lambda: any(one.record.held.get(broker.queue) == 1 for one in page.workers()),
        within=60.0, what="the worker to tell of the nap",
    )  # fmt: skip
    worker.kill_group()
    page.wait("gone")
    # Of another queue: who finds the nap that was lost would be in it when it is told to stop.
    again = start_worker(SOURCE, queues=[f"{broker.queue}-other"])
    until(lambda: "w2@test" in {one.record.name for one in page.workers()}, within=60.0, what="the next one to speak")
    again.stop(within=60.0)
    until(
        lambda: "w2@test" not in {one.record.name for one in page.workers()},
        within=60.0, what="the one that stopped to be gone",
    )  # fmt: skip


@redis
def test_nobody_takes_from_a_queue(site: Callable[..., Site], start_worker: StartWorker) -> None:
    """Messages wait and there is no worker; once there is one, the problem is over."""
    page = site()
    page.app.tasks["proj.fine"].delay()
    said = page.wait("CeleryQueueNoConsumer")
    assert "no worker takes from it; messages that wait: 1; the oldest for " in said
    start_worker(SOURCE)
    page.calm()


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_nobody_takes_from_a_queue_of_rabbitmq(site: Callable[..., Site], start_worker: StartWorker) -> None:
    """By the broker's own count of consumers, and by how long this process has seen messages wait."""
    page = site()
    page.app.tasks["proj.fine"].delay()
    assert "seen for" in page.wait("CeleryQueueNoConsumer")
    start_worker(SOURCE)
    page.calm()


@redis
def test_nothing_ends(site: Callable[..., Site], start_worker: StartWorker) -> None:
    """Its only worker is in two runs that do not end, and messages wait behind them."""
    page = site()
    start_worker(SOURCE)
    until(lambda: page.beats() > 4.0, within=60.0, every=0.3, what="the worker to be older than the limit")
    for _ in range(8):
        page.app.tasks["proj.nap"].delay(600)
    assert "for 4s nothing has ended; messages that wait: " in page.wait("CeleryQueueStalled")


@redis
def test_a_worker_that_lost_its_consumer(site: Callable[..., Site], start_worker: StartWorker) -> None:
    """It is up, and takes nothing, though nobody told it so."""
    page = site()
    start_worker(SOURCE)
    until(lambda: page.workers(), within=60.0, what="the worker to speak")
    listening(page.app)
    page.app.control.broadcast("deafen")
    assert page.wait("CeleryWorkerNotConsuming").startswith("w1@test is up and does not take from queue q-")


@redis
def test_a_worker_that_was_told_not_to_consume(
    broker: Broker, site: Callable[..., Site], start_worker: StartWorker
) -> None:
    """``cancel_consumer`` is somebody's wish: it is shown, and is no problem."""
    page = site()
    start_worker(SOURCE)
    listening(page.app)
    page.app.control.cancel_consumer(broker.queue)
    until(
        lambda: any(one.record.cancelled == (broker.queue,) for one in page.workers()),
        within=60.0, what="the worker to tell that it was told",
    )  # fmt: skip
    page.stays_calm()


@redis
def test_a_worker_whose_loop_hangs(site: Callable[..., Site], start_worker: StartWorker) -> None:
    """Its thread still speaks, and says that the loop does not turn."""
    page = site()
    start_worker(SOURCE)
    until(lambda: page.workers(), within=60.0, what="the worker to speak")
    listening(page.app)
    page.app.control.broadcast("hold_up", arguments={"seconds": 600.0})
    assert page.wait("CeleryWorkerHangs", within=90.0).startswith("w1@test: its main loop has not turned for ")


@redis
@pytest.mark.chaos
def test_a_frozen_worker_and_its_lost_lease(
    broker: Broker, site: Callable[..., Site], start_worker: StartWorker
) -> None:
    """While it is frozen it says nothing, which is told. Another worker takes its message, and when it wakes up it
    tells of the lease that it lost: once, with the task's name."""
    page = site()
    frozen = start_worker(SOURCE, concurrency=1)
    page.app.tasks["proj.nap"].delay(600)  # it goes on when its worker wakes, however long the other takes to start
    until(lambda: page.notes("naps"), within=60.0, what="the nap to have begun")
    until(lambda: page.workers(), within=60.0, what="the worker to speak")
    frozen.pause()
    start_worker(SOURCE, concurrency=1)
    assert page.wait("gone").startswith("w1@test has said nothing for ")
    until(lambda: len(page.notes("naps")) == 2, within=60.0, what="the other worker to have begun the nap")
    frozen.resume()
    said = page.wait("CeleryLeasesLost")
    lost = "messages that went to another worker while they ran: 1; proj.nap on w1@"
    assert said.startswith(f"Queue {broker.queue}: {lost}")


@redis
@pytest.mark.chaos
def test_a_killed_worker(site: Callable[..., Site], start_worker: StartWorker) -> None:
    """It could not take its leave: it is told, until its successor of the same name speaks."""
    page = site()
    worker = start_worker(SOURCE)
    until(lambda: page.workers(), within=60.0, what="the worker to speak")
    worker.signal_group(SIGKILL)
    assert page.wait("gone").startswith("w1@test has said nothing for ")
    worker.start()
    worker.wait_ready()
    page.calm()


@redis
@pytest.mark.chaos
def test_no_leader(site: Callable[..., Site], start_beat: StartBeat) -> None:
    """Before the first beat, while one leads, and after it was killed; nothing once nothing is scheduled."""
    page = site(**OFTEN)
    assert "no beat of this package has ever led" in page.wait("no beat yet")
    beat = start_beat(SOURCE, env=OFTEN)
    until(lambda: not {"no beat yet", "CeleryBeatNoLeader"} & page.said().keys(), within=60.0, what="no such problem")
    beat.kill()
    said = page.wait("CeleryBeatNoLeader")
    assert said.startswith("No beat leads: no schedule fires; nobody has led for about ")
    assert f"(pid {beat.pid})" in said
    page.app.conf.beat_schedule = {}
    assert not {"no beat yet", "CeleryBeatNoLeader"} & page.said().keys()


@redis
@pytest.mark.chaos
def test_missed_runs(site: Callable[..., Site], start_beat: StartBeat) -> None:
    """Beat is killed over several slots: when another leads, the page tells how many were missed."""
    page = site(**OFTEN)
    beat = start_beat(SOURCE, env=OFTEN)
    until(lambda: page.facts.beats and page.facts.beats.records, within=60.0, what="a slot to have been decided")
    beat.kill()
    page.wait("CeleryBeatNoLeader")
    start_beat(SOURCE, env=OFTEN)
    said = page.wait("CeleryBeatRunsMissed")
    assert said.startswith("often: ")
    assert "slots that were not fired (missed): " in said
    assert "; in the last hour" in said


@redis
def test_dead_letters_grow(site: Callable[..., Site], broker: Broker, start_worker: StartWorker) -> None:
    """What failed for good a moment ago."""
    page = site()
    start_worker(SOURCE)
    page.app.tasks["proj.broken"].delay()
    said = page.wait("CeleryDeadLettersGrowing")
    assert said.startswith(f"Queue {broker.queue}: more dead letters in 15m: 1")
