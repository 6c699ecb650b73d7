"""Beats that are killed, or frozen until another one has led, between any two steps of a tick."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis

from celery_hardened.beat.names import Keys, task_id_of
from tests.fixtures.beats import BeatProcess, StartBeat
from tests.fixtures.processes import StartWorker
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

# Twenty beats that start one after the other, on a busy machine.
pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(400)]

APP = (Path(__file__).parents[1] / "support" / "beat_kill_points_app.py").read_text()

#: Seconds of a lead: one that outlives a stall of the machine. Who is to be killed next has it until then.
TTL = "6"

#: Milliseconds between two slots of each schedule.
PERIOD = 250

SCHEDULES = {name: {"task": f"proj.{name}", "schedule": PERIOD / 1000} for name in ("tick", "own")}

COMMON = ("lead", "renewal", "open", "look", "decide", "settle", "wait", "release")
ONE_WRITE = (*COMMON, "fire", "publish by the path")
THREE_STEPS = ("claim", "publish", "confirm")

#: Killed there, a beat leaves a message that its successor cannot know of.
TWINS = ("after publish", "before confirm")


def points(names: Iterable[str]) -> list[str]:
    return [f"{when} {what}" for what in names for when in ("before", "after")]


def place(environment: dict[str, str], *, together: bool) -> dict[str, str]:
    """Where the records are: beside the queues, or elsewhere."""
    records = environment["BROKER_URL"] if together else environment["RECORDS_URL"]
    return {"RECORDS_URL": records, "SCHEDULES": json.dumps(SCHEDULES), "TTL": TTL}


def nth(point: str) -> str:
    """The first time, where there is only one; else a later one, when the beat has fired already."""
    return "1" if point.split()[1] in ("lead", "open", "release") else "5"


def runs(out: Path, name: str) -> list[int]:
    """Slots in milliseconds, in the order of their runs."""
    return [int(line.split()[1]) for line in notes(out, "runs") if line.split()[0] == name]


def assert_once(out: Path, names: Iterable[str] = SCHEDULES) -> None:
    """Each slot from the first to the last has run once, under its own id, and no other has."""
    for name in names:
        found = sorted(runs(out, name))
        assert found == list(range(found[0], found[-1] + 1, PERIOD)), Counter(found).most_common(3)
    for line in notes(out, "runs"):
        name, slot, task_id, missed = line.split()
        assert (task_id, missed) == (task_id_of(name, int(slot) / 1000), "0")


def kill_at_each(
    which: list[str], start_beat: StartBeat, environment: Mapping[str, str], env: dict[str, str], out: Path
) -> None:
    """One beat after the other leads and is killed at its point, while the next one stands by."""

    def start(point: str) -> BeatProcess:
        more = {"AT": point, "NTH": nth(point)} if point else {}
        return start_beat(APP, env={**env, **more}, leads=False)

    beats = [start(which[0])]
    for point, following in zip(which, [*which[1:], ""], strict=True):
        victim = beats[-1]
        if not following or following.endswith("release"):
            # Of two that stand by, either may lead next. One that does not end by itself would lead for ever.
            until(lambda: beats[-1].leads or not beats[-1].running, within=60, what=f"who is killed {point} to lead")
        beats.append(start(following))
        if point.endswith("release"):
            victim.wait_leading()
            victim.signal(signal.SIGTERM)
        until(lambda victim=victim: not victim.running, within=60, what=f"a beat to be killed {point}")
        assert (out / f"was {point}").exists(), f"it was not killed {point}"
        assert victim.returncode == -signal.SIGKILL, point
    last = beats[-1]
    last.wait_leading()
    done = len(runs(out, "tick"))
    until(lambda: len(runs(out, "tick")) >= done + 8, within=60, what="the last beat to fire")
    last.stop()
    final = {name: last_slot(environment, env, name) for name in SCHEDULES}

    def all_ran(name: str) -> bool:
        """Up to the last: one before it may run still, in the other process of the pool."""
        found = set(runs(out, name))
        return bool(found) and found >= set(range(min(found), final[name] + 1, PERIOD))

    until(lambda: all(map(all_ran, SCHEDULES)), within=60, what="all runs up to the last")


def last_slot(environment: Mapping[str, str], env: Mapping[str, str], name: str) -> int:
    """The last slot that is known to be fired, as its record says; there may be one more that is pending."""
    client: Redis = Redis.from_url(env["RECORDS_URL"])
    record = json.loads(client.hget(Keys(environment["KEY_PREFIX"]).records, name))
    return round(record["last_slot"] * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_slot_and_its_message_are_one_write(
    start_beat: StartBeat, start_worker: StartWorker, environment: dict[str, str], out: Path
) -> None:
    """SIGKILL at every arrow of the tick: each slot runs once, and there is one message of it."""
    env = place(environment, together=True)
    start_worker(APP, env=env)
    kill_at_each(points(ONE_WRITE), start_beat, environment, env, out)
    assert_once(out)
    assert set(Counter(notes(out, "given")).values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_a_claimed_slot_is_published_by_the_next_leader(
    start_beat: StartBeat, start_worker: StartWorker, environment: dict[str, str], out: Path
) -> None:
    """
    SIGKILL at every arrow of claim, publish and confirm: each slot runs once. Killed behind the publish there are
    two messages of it, of which the worker drops one; elsewhere there is one.
    """
    env = place(environment, together=False)
    start_worker(APP, env=env)
    kill_at_each(points(THREE_STEPS), start_beat, environment, env, out)
    assert_once(out)
    twins = [task_id for task_id, count in Counter(notes(out, "given")).items() if count > 1]
    assert len(twins) == len(TWINS)


# --- frozen until another one has led -----------------------------------------------------------------------

MANY = 400


def many(task: str) -> dict[str, str]:
    """400 schedules that are due in the same moment."""
    every = {f"{task}-{number:03}": {"task": f"proj.{task}", "schedule": 30.0} for number in range(MANY)}
    return {"SCHEDULES": json.dumps(every)}


def frozen(beat: BeatProcess, out: Path, point: str) -> None:
    until(lambda: (out / f"was {point}").exists(), within=120, what=f"a beat to be frozen {point}")
    assert beat.running


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("task", ["tick", "own"])
def test_a_frozen_leader_is_refused_by_redis(
    broker: Broker, start_beat: StartBeat, environment: dict[str, str], out: Path, task: str
) -> None:
    """
    400 are due; the leader freezes with messages made, right before the script of some of them. Another one
    fires the rest. What wakes asks for its script at once, and Redis refuses it, not its clock: 400 messages.
    """
    env = {**place(environment, together=True), **many(task)}
    # The second batch, or the 150th message that is sent alone.
    when = {"AT": "before fire", "NTH": {"tick": "2", "own": "150"}[task], "HOW": "SIGSTOP"}
    leader = start_beat(APP, env={**env, **when})
    second = start_beat(APP, env=env, leads=False)
    second.wait_standing_by()
    frozen(leader, out, "before fire")
    second.wait_leading()
    client: Redis = Redis.from_url(broker.url)

    def ids() -> list[str]:
        return [json.loads(message)["headers"]["id"] for message in client.lrange(broker.queue, 0, -1)]

    until(lambda: len(set(ids())) >= MANY, within=60, what="the other beat to fire the rest")
    leader.resume()
    leader.wait_for_log("this beat leads no more", within=60)
    second.stop()  # whoever leads now, what the first one held is decided
    leader.wait_leading()
    leader.stop()
    count = Counter(ids())
    assert set(count.values()) == {1}
    assert len(count) >= MANY
    assert notes(out, "refused") == [str(leader.pid)]


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_what_a_frozen_leader_publishes_late_is_dropped(
    start_beat: StartBeat, start_worker: StartWorker, environment: dict[str, str], out: Path
) -> None:
    """
    Frozen with a hundred slots claimed, it publishes one of them when it wakes, though another one has done so: no
    broker can refuse it. Not a second one: its lead is over by its own clock. Each slot runs once.
    """
    env = {**place(environment, together=False), **many("tick")}
    start_worker(APP, env=env)
    leader = start_beat(APP, env={**env, "AT": "before publish", "NTH": "150", "HOW": "SIGSTOP"})
    frozen(leader, out, "before publish")
    start_beat(APP, env=env)
    until(lambda: len(notes(out, "runs")) >= MANY, within=120, what="the other beat to fire the rest")
    leader.resume()
    leader.wait_for_log("this beat leads no more", within=60)
    until(lambda: len(notes(out, "given")) > len(notes(out, "runs")), within=60, what="the message of what woke")
    done = len(notes(out, "runs"))
    until(lambda: len(notes(out, "runs")) >= done + MANY, within=120, what="the next slots, behind it")

    def one_came_twice() -> bool:
        given = Counter(Counter(notes(out, "given")).values())
        return given == {1: len(notes(out, "runs")) - 1, 2: 1}

    # Of slots that fall due meanwhile some have come and not run yet.
    until(one_came_twice, within=60, what="all that came to have run, and one message to have come twice")
    assert set(Counter(notes(out, "runs")).values()) == {1}


# --- answers that are lost ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_script_whose_answer_was_lost_is_not_repeated(
    broker: Broker, start_beat: StartBeat, start_proxy: Callable[[int], TcpProxy], environment: dict[str, str]
) -> None:
    """
    Redis does what it is asked, and the beat is not told, again and again: what it asks for next finds that its
    record has moved. One message of each slot, and none is left out.
    """
    proxy = start_proxy(broker.port)
    env = {**place(environment, together=True), "RECORDS_URL": broker.at(proxy.port).url}
    env["BROKER_URL"] = env["RECORDS_URL"]
    env["TTL"] = "60"  # it leads on, and asks again itself
    beat = start_beat(APP, env=env)
    client: Redis = Redis.from_url(broker.url)
    keys = Keys(environment["KEY_PREFIX"])

    def length() -> int:
        return int(client.llen(broker.queue))

    until(lambda: length() >= 4, within=60, what="the first messages")
    lost = 0
    for _ in range(50):
        if lost == 5:
            break
        proxy.silence("down")
        before = length()
        # It may be the answer to something else that is lost; then nothing is fired until the line is whole.
        with suppress(AssertionError):
            until(lambda before=before: length() > before, within=2, what="a script whose answer goes nowhere")
            lost += 1
        proxy.heal()
        told = length()
        until(lambda told=told: length() > told + 4, within=60, what="it to go on")
    beat.stop()
    assert lost == 5
    ids = Counter(json.loads(message)["headers"]["id"] for message in client.lrange(broker.queue, 0, -1))
    assert set(ids.values()) == {1}
    for name in SCHEDULES:
        record = json.loads(client.hget(keys.records, name))
        slots = range(round(record["anchor"] * 1000) + PERIOD, round(record["cursor"] * 1000) + 1, PERIOD)
        assert record["fired"] == len(slots)
        assert {task_id_of(name, slot / 1000) for slot in slots} <= ids.keys()
