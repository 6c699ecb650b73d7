"""Overlap policies, pauses and missed runs on real beats and real workers."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from celery_hardened import Hardening
from celery_hardened.beat.names import Keys, task_id_of, window_of
from celery_hardened.beat.record import Record
from celery_hardened.beat.store import BeatStore
from celery_hardened.pipeline.windows import windows
from tests.fixtures.beats import BeatProcess, StartBeat
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.ports import free_port
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

pytestmark = pytest.mark.integration

APP = (Path(__file__).parents[1] / "support" / "overlap_app.py").read_text()

LEASE = 4.0
SHORT = {"LEASE": str(LEASE)}

on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


class Noted(NamedTuple):
    """One line of a run's."""

    what: str
    schedule: str
    task_id: str
    slot: float
    missed: int
    at: float


class Seen:
    """What beats and workers have done."""

    def __init__(self, out: Path, project: ModuleType) -> None:
        self.out = out
        self.project = project
        self.hardening = Hardening.expect(project.app)
        self.keys = Keys(self.hardening.prefix)
        self.store = BeatStore(self.hardening.redis, self.keys, history=50)

    def lines(self, schedule: str) -> list[Noted]:
        found = []
        for line in notes(self.out, "runs"):
            what, name, task_id, slot, missed, at = line.split()
            if name == schedule:
                found.append(Noted(what, name, task_id, float(slot), int(missed), float(at)))
        return found

    def starts(self, schedule: str) -> list[Noted]:
        return [one for one in self.lines(schedule) if one.what == "start"]

    def ends(self, schedule: str) -> list[Noted]:
        return [one for one in self.lines(schedule) if one.what == "end"]

    def started(self, schedule: str, times: int = 1, *, within: float = 60.0) -> list[Noted]:
        """Wait until so many runs have begun."""
        until(lambda: len(self.starts(schedule)) >= times, within=within, what=f"run {times} of {schedule}")
        return self.starts(schedule)

    def together(self, schedule: str) -> int:
        """How many runs there were at the same time, at most."""
        running: set[str] = set()
        most = 0
        for one in self.lines(schedule):
            (running.add if one.what == "start" else running.discard)(one.task_id)
            most = max(most, len(running))
        return most

    def record(self, schedule: str) -> Record:
        return Record.parse(until(lambda: self.store.record(schedule), what=f"the record of {schedule}") or "")

    def passed(self, schedule: str, reason: str) -> int:
        return self.record(schedule).passed.get(reason, 0)

    def passes(self, schedule: str, reason: str, count: int) -> None:
        """Wait until so many more slots have passed."""
        before = self.passed(schedule, reason)
        until(
            lambda: self.passed(schedule, reason) >= before + count,
            within=60,
            what=f"{count} slots of {schedule} {reason}",
        )

    def outcomes(self, schedule: str) -> Counter[str]:
        return Counter(line["outcome"] for line in self.store.history(schedule, 50))

    def holder(self, schedule: str) -> str | None:
        found = windows(self.hardening).held("schedule")
        return next((one.task_id for one in found if one.key == window_of(schedule)), None)

    def over(self, schedule: str) -> None:
        """Wait until no run of it is queued or running."""
        until(lambda: self.holder(schedule) is None, within=60, what=f"the run of {schedule} is over")

    def ids(self, schedule: str) -> list[str]:
        """Of its starts."""
        return [one.task_id for one in self.starts(schedule)]

    def ends_between(self, beat: BeatProcess, *schedules: str) -> None:
        """End *beat* while no slot is on its way to the broker, so that it leaves none claimed."""

        def at_rest() -> bool:
            beat.pause()  # or it claims the next one between a look and its end
            if all(self.record(name).pending is None for name in schedules):
                return True
            beat.resume()
            return False

        until(at_rest, what="what was published to be confirmed")
        beat.kill_group()

    def opens(self, gate: str) -> None:
        (self.out / gate).touch()


@pytest.fixture(autouse=True)
def environment(environment: dict[str, str], broker: Broker) -> dict[str, str]:
    """Records beside the queues where that can be, so that a slot is claimed and fired in one script."""
    return environment | ({"RECORDS_URL": broker.url} if broker.kind == "redis" else {})


@pytest.fixture
def seen(load_project: LoadProject, out: Path) -> Seen:
    return Seen(out, load_project(APP))


def env(schedules: dict[str, dict[str, Any]], **more: str) -> dict[str, str]:
    return {"SCHEDULES": repr(schedules), **more}


def every(task: str, *args: Any, seconds: float = 0.5, overlap: str = "skip", **more: Any) -> dict[str, Any]:
    return {"task": f"proj.{task}", "schedule": seconds, "args": args, "overlap": overlap, **more}


def ended(beat: BeatProcess) -> None:
    """Nothing is fired any more."""
    beat.signal(signal.SIGTERM)
    beat.wait()


# --- skip -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_never_two_at_once(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """Runs of two seconds each half second, hardened and contained, with room for all of them: one at a time, the
    next one after the end, through a fail-over. Every slot is fired or counted as overlapped, also in the history."""
    schedules = env({"deep": every("slow", 2.0), "plain": every("plain_slow", 2.0)})
    start_worker(APP, env=schedules, concurrency=6)
    first = start_beat(APP, env=schedules)
    second = start_beat(APP, env=schedules, leads=False)
    second.wait_standing_by()
    begun = {name: seen.starts(name)[:1] or seen.started(name)[:1] for name in ("deep", "plain")}
    for name in begun:
        seen.passes(name, "overlapped", 1)
    first.kill()
    second.wait_leading()
    for name in begun:
        seen.started(name, 4, within=90)
    ended(second)

    for name in begun:
        record = seen.record(name)
        assert seen.together(name) == 1
        starts = seen.starts(name)
        assert len({one.task_id for one in starts}) == len(starts)
        assert all(one.task_id == task_id_of(name, one.slot) for one in starts)
        slots = round((record.cursor - record.anchor) / 0.5)
        # The second beat may have been ended between a claim and its confirmation.
        assert record.fired + sum(record.passed.values()) + (record.pending is not None) == slots
        assert set(record.passed) <= {"overlapped", "coalesced"}
        assert record.passed["overlapped"] >= 6
        assert seen.outcomes(name).keys() == {"fired", "overlapped"}


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_a_queued_run_is_a_running_one(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """Without a worker one message waits, however many slots pass: the worker that comes at last runs it alone."""
    schedules = env({"deep": every("slow", 0.1), "plain": every("plain_slow", 0.1)})
    beat = start_beat(APP, env=schedules)
    for name in ("deep", "plain"):
        seen.passes(name, "overlapped", 10)
    ended(beat)
    start_worker(APP, env=schedules)
    for name in ("deep", "plain"):
        seen.over(name)
        assert len(seen.starts(name)) == 1


@on_redis
def test_however_a_run_ends_the_next_one_runs(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """Failed for good, rejected, lost with its process, expired where nobody consumes, or after its last attempt."""
    schedules = env(
        {
            "broken": every("broken", 0.1),
            "rejecting": every("rejecting", 0.1),
            "dies_once": every("dies_once"),
            "retrying": every("retrying", 1.2),
            "expired": every("slow", 0.1, options={"queue": "nobodys", "expires": 0.3}),
        },
        **SHORT,
    )
    start_worker(APP, env=schedules, concurrency=3)
    beat = start_beat(APP, env=schedules)
    for name in ("broken", "rejecting", "dies_once"):
        until(lambda name=name: len(set(seen.ids(name))) >= 3, within=90, what=f"{name} runs on")  # type: ignore[misc]
    seen.started("retrying", 7, within=90)
    until(lambda: seen.record("expired").fired >= 2, within=LEASE * 5, what="the run that expired is over")
    ended(beat)

    attempts = [one.task_id for one in seen.starts("retrying")]
    assert attempts[:3] == attempts[:1] * 3, "between two attempts it is running"
    assert attempts[3:6] == attempts[3:4] * 3
    assert all(seen.together(name) == 1 for name in ("broken", "rejecting", "retrying"))
    assert seen.passed("retrying", "overlapped") >= 6


@pytest.mark.chaos
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_a_killed_worker(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """A hardened run is delivered again and holds on until it is done; a contained one, which was acked, is over
    within a lease."""
    schedules = env({"deep": every("gated", "deep"), "plain": every("plain_gated", "plain")}, **SHORT)
    worker = start_worker(APP, env=schedules, concurrency=2)
    start_beat(APP, env=schedules)
    deep = seen.started("deep")[0].task_id
    seen.started("plain")
    worker.kill_group()
    until(lambda: seen.record("plain").fired >= 2, within=LEASE * 5, what="the contained run is over")
    assert seen.holder("deep") == deep

    start_worker(APP, env=schedules, concurrency=2)
    seen.started("deep", 2, within=LEASE * 15)
    seen.passes("deep", "overlapped", 3)
    assert {one.task_id for one in seen.starts("deep")} == {deep}
    assert seen.holder("deep") == deep
    seen.opens("deep")
    until(lambda: seen.starts("deep")[-1].task_id != deep, within=60, what="the next run")


# --- buffer_one -------------------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_one_slot_waits(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """The first one that met the run; those behind it are overlapped. The leader dies meanwhile; soon after the
    run's end the slot is fired, before any later one."""
    schedules = env({"one": every("gated", "one", overlap="buffer_one")})
    start_worker(APP, env=schedules, concurrency=3)
    first = start_beat(APP, env=schedules)
    second = start_beat(APP, env=schedules, leads=False)
    second.wait_standing_by()
    run = seen.started("one")[0]
    waiting = until(lambda: seen.record("one").buffered, what="the next slot to wait")
    assert waiting == run.slot + 0.5
    seen.passes("one", "overlapped", 3)
    first.kill()
    second.wait_leading()
    seen.passes("one", "overlapped", 3)
    assert seen.record("one").buffered == waiting
    assert len(seen.starts("one")) == 1
    seen.opens("one")
    after = seen.started("one", 3)
    assert after[1].slot == waiting
    assert after[1].at - seen.ends("one")[0].at < 10
    assert after[2].slot > after[1].slot
    assert seen.together("one") == 1


# --- cancel_other, terminate_other ------------------------------------------------------------------------


def all_revoked(seen: Seen) -> bool:
    return not seen.hardening.redis.exists(seen.keys.revoke)


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_a_later_run_cancels_the_one_that_waits(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """One that is queued never begins; one that runs goes on to its end. The latest runs, and its window is free
    after its own end alone."""
    schedules = env({"latest": every("gated", "latest", overlap="cancel_other")})
    start_worker(APP, env=schedules, concurrency=1)
    beat = start_beat(APP, env=schedules)
    run = seen.started("latest")[0]
    until(lambda: seen.record("latest").fired >= 8, what="eight fires")
    seen.ends_between(beat, "latest")
    start_beat(APP, env={**schedules, "SCHEDULES": "{}"})
    until(lambda: all_revoked(seen), what="all to be revoked")
    last = seen.record("latest").last_slot
    assert last is not None
    assert seen.holder("latest") == task_id_of("latest", last)
    seen.opens("latest")
    seen.over("latest")
    assert [one.slot for one in seen.starts("latest")] == [run.slot, last]
    assert len(seen.ends("latest")) == 2
    assert seen.record("latest").passed == {}


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_a_later_run_terminates_the_one_before(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """It is killed, revoked, and neither retried nor delivered again; its end does not free the window of the one
    that replaced it. Hardened and contained."""
    names = ("deep", "plain")
    schedules = env(
        {
            "deep": every("gated", "deep", seconds=2, overlap="terminate_other"),
            "plain": every("plain_gated", "plain", seconds=2, overlap="terminate_other"),
        }
    )
    start_worker(APP, env=schedules, concurrency=4)
    beat = start_beat(APP, env=schedules)
    for name in names:
        seen.started(name, 4, within=90)
    seen.ends_between(beat, *names)
    start_beat(APP, env={**schedules, "SCHEDULES": "{}"})
    until(lambda: all_revoked(seen), what="all to be revoked")
    for name in names:
        last = task_id_of(name, seen.record(name).last_slot or 0.0)
        until(lambda name=name, last=last: seen.ids(name)[-1] == last, what=f"the last of {name}")  # type: ignore[misc]
        runs = [one.task_id for one in seen.starts(name)]
        assert len(set(runs)) == len(runs)
        for killed in runs[:-1]:
            state = partial(getattr, seen.project.app.AsyncResult(killed), "state")
            until(lambda state=state: state() == "REVOKED", within=60, what=f"{killed} revoked")  # type: ignore[misc]
        assert seen.ends(name) == []
        assert seen.holder(name) == last
        seen.opens(name)
        seen.over(name)
        assert [one.task_id for one in seen.ends(name)] == [last]
        assert [one.task_id for one in seen.starts(name)] == runs


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_runs_that_were_replaced_while_no_worker_was_there(
    start_beat: StartBeat, start_worker: StartWorker, seen: Seen
) -> None:
    """Nobody hears their revokes. The worker that comes, with room for all of them, begins the latest alone; the
    others end as revoked, without a letter, and the schedule goes on. Hardened and contained."""
    names = {"deep": "cancel_other", "plain": "cancel_other", "harsh": "terminate_other"}
    tasks = {"deep": "gated", "plain": "plain_gated", "harsh": "gated"}
    schedules = env({name: every(tasks[name], name, overlap=overlap) for name, overlap in names.items()})
    beat = start_beat(APP, env=schedules)
    for name in names:
        until(lambda name=name: seen.record(name).fired >= 8, within=60, what="eight fires")  # type: ignore[misc]
    seen.ends_between(beat, *names)
    silent = start_beat(APP, env={**schedules, "SCHEDULES": "{}"})
    until(lambda: all_revoked(seen), within=60, what="all to be revoked")
    ended(silent)

    start_worker(APP, env=schedules, concurrency=8)
    lines = {name: [line for line in seen.store.history(name, 50) if line["outcome"] == "fired"] for name in names}
    for name in names:
        latest, *others = [line["id"] for line in lines[name]]
        assert len(others) >= 7
        for other in others:
            state = partial(getattr, seen.project.app.AsyncResult(other), "state")
            until(lambda state=state: state() == "REVOKED", within=60, what=f"{other} revoked")  # type: ignore[misc]
        seen.started(name)
        assert seen.ids(name) == [latest]
        assert seen.holder(name) == latest
        seen.opens(name)
        seen.over(name)
    assert not letters(seen.project)
    start_beat(APP, env=schedules)
    for name in names:
        assert seen.started(name, 2)[1].slot > seen.starts(name)[0].slot


# --- a broker elsewhere ---------------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_claims_and_windows(
    start_beat: StartBeat,
    start_worker: StartWorker,
    start_proxy: Callable[[int], TcpProxy],
    seen: Seen,
    broker: Broker,
) -> None:
    """A broker that cannot be reached has got nothing: no slot is claimed and no window held. One that does not
    confirm may have it: the slot stays claimed and its window held, also for the next beat, until it confirms. Then
    the slot runs, once."""
    schedules = env({"one": every("slow", 0.0)})
    nowhere = start_beat(APP, env={**schedules, "BROKER_URL": broker.at(free_port()).url})
    until(lambda: "the broker does not answer" in nowhere.log(), within=60, what="the broker to be missed")
    until(lambda: seen.record("one").pending is None and seen.holder("one") is None, what="nothing to be held")
    ended(nowhere)
    assert seen.record("one").fired == 0

    proxy = start_proxy(broker.port)
    through = {**schedules, "BROKER_URL": broker.at(proxy.port).url}
    beat = start_beat(APP, env=through)
    until(lambda: seen.record("one").fired >= 1, within=60, what="a fire through the proxy")
    worker = start_worker(APP, env=schedules)
    until(lambda: seen.record("one").fired >= 3, within=60, what="fires on time")
    proxy.silence("down")

    def stays_claimed() -> float | None:
        # Not one whose confirmation has come through, and is about to be noted.
        slot = seen.record("one").pending
        return slot if slot is not None and time.time() - slot > 2 else None

    claimed = until(stays_claimed, within=60, what="a slot of which nothing is known") or 0.0
    assert seen.record("one").pending_after is not None
    beat.kill()
    second = start_beat(APP, env=through)
    until(lambda: "is not known whether slot" in second.log(), within=60, what="it to be published again")
    assert seen.record("one").pending == claimed
    proxy.heal()
    until(lambda: (seen.record("one").last_slot or 0.0) > claimed, within=90, what="the slots behind it")
    until(lambda: claimed in [one.slot for one in seen.starts("one")], within=60, what="the slot to run")
    ended(second)
    # The second beat may have been ended between a claim and its confirmation: the window stays held for that slot.
    last = seen.record("one")
    until(lambda: last.pending or seen.holder("one") is None, within=60, what="the last run to be over")
    assert worker.running
    ids = seen.ids("one")
    assert len(set(ids)) == len(ids)
    assert 0 <= len(ids) - last.fired <= (last.pending is not None)
    assert seen.together("one") == 1


# --- what cannot be held apart --------------------------------------------------------------------------------


@on_redis
def test_while_tasks_are_only_observed_none_tells_its_end(start_beat: StartBeat, seen: Seen) -> None:
    """Then an overlap policy is refused, and shown; schedules without one fire."""
    schedules = env(
        {"held": every("slow", 0.0), "free": every("slow", 0.0, overlap="allow")}, CONF="{'hardened_observe': True}"
    )
    start_beat(APP, env=schedules)
    until(lambda: seen.record("free").fired >= 3, what="three fires", within=60)
    until(lambda: "held" in seen.store.problems(), what="the problem")
    assert "hardened_observe" in seen.store.problems()["held"].text
    assert seen.store.record("held") is None


@on_redis
def test_many_more_schedules_than_workers_can_run(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """Two hundred of one slow task: each has one message at most, in the queue or running; every slot is accounted
    for, and every fire runs once."""
    names = [f"s{number:03}" for number in range(200)]
    schedules = env({name: every("slow", 0.05) for name in names})
    start_worker(APP, env=schedules, concurrency=2)
    beat = start_beat(APP, env=schedules)
    until(lambda: len(notes(seen.out, "runs")) >= 1000, within=150, what="five hundred runs", every=0.5)
    ended(beat)
    until(lambda: not [*windows(seen.hardening).held("schedule")], within=90, what="the queue is empty", every=0.5)

    runs = [line.split() for line in notes(seen.out, "runs")]
    started = Counter(words[1] for words in runs if words[0] == "start")
    running: Counter[str] = Counter()
    for what, name, *_ in runs:
        running[name] += 1 if what == "start" else -1
        assert running[name] in (0, 1)
    for name in names:
        record = seen.record(name)
        assert record.fired == started[name]
        assert record.fired + record.passed.get("overlapped", 0) == round((record.cursor - record.anchor) / 0.5)
        assert set(record.passed) <= {"overlapped"}


# --- pauses, and what was missed ------------------------------------------------------------------------------


@on_redis
def test_a_pause(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """It holds within two seconds; slots in it are counted; after it goes on from the moment it is resumed."""
    schedules = env({"often": every("slow", 0.0, seconds=0.25, overlap="allow")})
    start_worker(APP, env=schedules)
    start_beat(APP, env=schedules)
    seen.started("often", 4)
    seen.store.pause("often", by="test", why="a test", until=None)
    begun = time.time()
    seen.passes("often", "paused", 12)
    resumed = time.time()
    seen.store.resume("often")
    until(lambda: seen.starts("often")[-1].slot > resumed, within=60, what="a run after the pause")
    slots = [one.slot for one in seen.starts("often")]
    assert not [slot for slot in slots if begun + 2 < slot < resumed - 0.5]
    assert seen.outcomes("often")["paused"] >= 1
    record = seen.record("often")
    assert record.fired + record.passed["paused"] == round((record.cursor - record.anchor) / 0.25)


@on_redis
def test_a_run_is_told_how_many_were_missed(start_beat: StartBeat, start_worker: StartWorker, seen: Seen) -> None:
    """No beat for three seconds, with a grace of one: the latest missed slot runs once and stands for the others."""
    schedules = env({"often": every("slow", 0.0, overlap="allow")}, CONF="{'hardened_beat_grace': 1.0}")
    start_worker(APP, env=schedules)
    first = start_beat(APP, env=schedules)
    seen.started("often", 3)
    ended(first)
    stopped = time.time()
    until(lambda: time.time() > stopped + 3, what="three seconds without a beat")
    second = start_beat(APP, env=schedules)
    # Not one of the first beat, which a busy machine may have held up for a second.
    many = until(
        lambda: [one for one in seen.starts("often") if one.missed and one.slot > stopped],
        within=60,
        what="a run for the others",
    )
    until(lambda: seen.starts("often")[-1].slot > many[0].slot + 2, within=60, what="runs on time")
    ended(second)
    record = seen.record("often")
    until(lambda: len(seen.starts("often")) == record.fired, within=60, what="all that was fired")
    runs = sorted(seen.starts("often"), key=lambda one: one.slot)
    assert many[0].missed >= 3
    assert sum(1 + one.missed for one in runs) == round((record.cursor - record.anchor) / 0.5)
    assert record.passed == {"coalesced": sum(one.missed for one in runs)}
