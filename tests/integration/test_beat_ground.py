"""A beat of an operator's: how it ends, wherever it is, and what it runs on."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery._state import task_join_will_block
from redis import Redis

from celery_hardened import harden
from celery_hardened.beat.entries import schedule_of
from celery_hardened.beat.schedule import Schedule
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.beat import policy_of
from celery_hardened.pipeline.beat_message import BeatMessages, FireMarks
from tests.fixtures.beats import BeatProcess, StartBeat
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

APP = (Path(__file__).parents[1] / "support" / "beat_app.py").read_text()

#: A lead that outlives a stall of the machine, where its end is not what is tested.
LONG = {"CONF": "{'hardened_beat_ttl': 60.0}"}

OFTEN = {"SCHEDULES": "{f's{n}': {'task': 'proj.tick', 'schedule': 0.1} for n in range(20)}"}


@pytest.fixture
def redis_app(records_url: str) -> Celery:
    return harden(Celery("shop", broker=records_url, backend=records_url, set_as_current=False))


def ends_well(beat: BeatProcess, *, within: float, codes: tuple[int, ...] = (0,)) -> None:
    """It ends by itself, as Celery's own beat: with 0, and nothing that reads like an error of ours."""
    code = beat.wait(within=within)
    log = beat.log()
    assert code in codes, log
    # Celery's handler of a signal raises SystemExit wherever it is; at the interpreter's end Python says so.
    _, *told = log.split("Traceback")
    assert all("celery/apps/beat.py" in one and "raise SystemExit()" in one for one in told), log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_signal_hands_over_in_the_midst_of_firing(start_beat: StartBeat, number: int) -> None:
    """Two hundred fires a second: it ends at once with 0, and the standby leads at once."""
    beat = start_beat(APP, env=OFTEN)
    other = start_beat(APP, env=OFTEN, leads=False)
    other.wait_standing_by()
    until(lambda: "Sending due task" in beat.log(), what="a fire", within=30)
    beat.signal(number)
    ends_well(beat, within=30)
    other.wait_leading()
    other.wait_for_log("let go")


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_an_impatient_signal(start_beat: StartBeat) -> None:
    """Five signals, one after the other, may cut off the letting go: the standby sees that the connection is gone."""
    beat = start_beat(APP, env=OFTEN)
    other = start_beat(APP, env=OFTEN, leads=False)
    other.wait_standing_by()
    for _ in range(5):
        beat.signal(signal.SIGTERM)
        time.sleep(0.002)  # not one signal that is merged out of five
    ends_well(beat, within=30, codes=(0, -signal.SIGTERM))  # or once Python has taken its handlers down
    other.wait_leading()


@pytest.mark.parametrize("fault", ["down", "silence"])
@pytest.mark.parametrize("wait", [0.0, 3.0])
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_it_ends_while_redis_is_away(
    start_beat: StartBeat, broker: Broker, start_proxy: Callable[[int], TcpProxy], fault: str, wait: float
) -> None:
    """Refused, or half open: it says that the lead ends with its lease, and ends."""
    proxy = start_proxy(broker.port)
    url = broker.at(proxy.port).url
    beat = start_beat(APP, env={**OFTEN, "BROKER_URL": url, "RECORDS_URL": url})
    until(lambda: "Sending due task" in beat.log(), what="a fire", within=30)
    getattr(proxy, fault)()
    time.sleep(wait)  # what is tested is how long it has been away: at once, and in the midst of its tries
    beat.signal(signal.SIGTERM)
    ends_well(beat, within=30)


@pytest.mark.parametrize("fault", ["down", "silence"])
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_it_ends_before_it_has_ever_led(
    start_beat: StartBeat, broker: Broker, start_proxy: Callable[[int], TcpProxy], fault: str
) -> None:
    """Redis was not there from the start."""
    proxy = start_proxy(broker.port)
    getattr(proxy, fault)()
    url = broker.at(proxy.port).url
    beat = start_beat(APP, env={**OFTEN, "BROKER_URL": url, "RECORDS_URL": url}, leads=False)
    beat.wait_for_log("Redis is away", within=60)
    beat.signal(signal.SIGTERM)
    ends_well(beat, within=30)
    assert beat.log().count("could not be given back") == 1


@pytest.mark.mortal
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_it_ends_while_a_broker_owes_a_confirm(
    start_beat: StartBeat, broker: Broker, start_proxy: Callable[[int], TcpProxy]
) -> None:
    proxy = start_proxy(broker.port)
    beat = start_beat(APP, env={**OFTEN, "BROKER_URL": broker.at(proxy.port).url})
    until(lambda: "Sending due task" in beat.log(), what="a fire", within=30)
    proxy.silence()
    time.sleep(1)  # schedules fall due each moment, so by then it waits for a confirm; nothing it writes says so
    beat.signal(signal.SIGTERM)
    ends_well(beat, within=30)


DEAF = (
    APP
    + """
from celery.signals import before_task_publish

class Heavy:
    def __del__(self):
        note("dying")
        time.sleep(3)

@before_task_publish.connect
def publishes(**_):
    Heavy()
"""
)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_signal_in_a_destructor_is_no_lost_one(start_beat: StartBeat, out: Path) -> None:
    """Python ignores what is raised there, and a result of a Redis backend has one: it ends all the same."""
    few = {"SCHEDULES": OFTEN["SCHEDULES"].replace("20", "2")}
    beat = start_beat(DEAF, env=few)
    other = start_beat(APP, env=OFTEN, leads=False)
    other.wait_standing_by()
    seen = len(notes(out, "dying"))
    until(lambda: len(notes(out, "dying")) > seen, what="a destructor", within=30)
    beat.signal(signal.SIGTERM)
    assert beat.wait(within=30) == 0
    assert "Exception ignored" in beat.log()
    other.wait_leading()
    other.wait_for_log("let go")


SLOW_RECEIVER = (
    APP
    + """
from celery.signals import before_task_publish

@before_task_publish.connect
def publishes(**_):
    time.sleep(0.4)
"""
)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_receivers_that_take_their_time_are_no_dead_main_loop(start_beat: StartBeat, out: Path) -> None:
    """Forty publishes of one batch, 0.4 s each, take longer than a main loop may be silent: the lead stays."""
    env = {"SCHEDULES": "{f's{n}': {'task': 'proj.tick', 'schedule': 30} for n in range(40)}", **LONG}
    beat = start_beat(SLOW_RECEIVER, env=env)
    until(lambda: beat.log().count("Sending due task") >= 40, what="all to be fired", within=180)
    assert "silent" not in beat.log()
    assert "leads no more" not in beat.log()


@pytest.mark.mortal
@pytest.mark.parametrize("options", [{}, {"countdown": 1}], ids=["template", "own-path"])
@pytest.mark.parametrize("broker", ["redis", "redis7"], indirect=True)
def test_a_full_redis_is_said_once_and_waited_out(start_beat: StartBeat, broker: Broker, options: object) -> None:
    """Nobody fires, the leader stays, and no schedule is blamed; with memory again, all go on at once."""
    client = Redis.from_url(broker.url)
    entry = f"{{'task': 'proj.tick', 'schedule': 0.5, 'options': {options}}}"
    env = {"SCHEDULES": f"{{f's{{n}}': {entry} for n in range(9)}}", "RECORDS_URL": broker.url}
    beat = start_beat(APP, env=env)
    until(lambda: beat.log().count("Sending due task") >= 9, what="fires", within=30)
    client.config_set("maxmemory", 1)
    beat.wait_for_log("nothing is fired until Redis answers", within=30)
    fired, since = beat.log().count("Sending due task"), time.monotonic()
    until(lambda: time.monotonic() - since > 12, what="more than two leases", within=60)
    assert beat.log().count("Sending due task") == fired
    client.config_set("maxmemory", 0)
    until(lambda: beat.log().count("Sending due task") >= fired + 18, what="fires again", within=30)
    beat.wait_for_log("schedules are fired again", within=30)
    log = beat.log()
    assert log.count("nothing is fired until Redis answers") == 1
    assert "leads no more" not in log
    assert "schedule 's" not in log


def test_no_result_is_waited_for(redis_app: Celery) -> None:
    """Celery would subscribe to each result of a Redis backend, on a connection that a beat never reads."""
    hardening = Hardening.expect(redis_app)
    entry = {"task": "proj.any", "schedule": 1, "options": {"countdown": 1}}
    schedule = schedule_of("a", entry, app=redis_app, defaults=policy_of(hardening.settings))
    assert isinstance(schedule, Schedule)
    messages = BeatMessages(redis_app, hardening)
    sent: list[object] = []
    for n in range(3):
        fire = FireMarks(slot=float(n), schedule="a", missed=0, run=None)
        messages.publish(schedule, task_id=f"id-{n}", fire=fire, claim=sent.append)
    messages.close()
    assert len(sent) == 3
    consumer: Any = redis_app.backend.result_consumer
    assert consumer._pubsub is None
    assert not task_join_will_block()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_an_app_without_a_place_for_records_ends_at_once(start_beat: StartBeat) -> None:
    """One traceback with a sentence at its end, not a loop, and not each of its characters as a line of the log."""
    app = APP.replace('hardened_redis_url=os.environ["RECORDS_URL"],', 'hardened_dead_letter_store="memory",')
    beat = start_beat(app, env={"BROKER_URL": "memory://"}, leads=False)
    assert beat.wait(within=60) == 1
    lines = beat.log().strip().splitlines()
    assert "hardened_redis_url is not set" in lines[-1]
    assert len(lines) < 100


HOW_TO = (Path(__file__).parents[2] / "docs" / "how-to" / "schedule-tasks.md").read_text()


@pytest.mark.parametrize("broker", ["redis", "redis7"], indirect=True)
def test_the_permissions_of_the_page_suffice(start_beat: StartBeat, broker: Broker, unique: str) -> None:
    """Overlaps, Celery's own path, priorities and a fail-over; a queue that is not listed is its schedule's trouble."""
    line = next(line for line in HOW_TO.splitlines() if "ACL SETUSER beat" in line)
    (_, rules) = line.split("SETUSER beat ")
    words = [
        word.replace("~hardened:", f"~t-{unique}:").replace("~celery", f"~{broker.queue}")
        for word in shlex.split(rules)
    ]
    admin = Redis.from_url(broker.url)
    admin.execute_command("ACL", "SETUSER", unique, *words)
    entries = {
        "plain": {},
        "own": {"options": {"countdown": 1}},
        "priority": {"options": {"priority": 6}},
        "overlap": {"overlap": "cancel_other"},
        "refused": {"options": {"queue": f"other-{unique}"}},
    }
    schedules = {name: {"task": "proj.tick", "schedule": 0.5, **more} for name, more in entries.items()}
    url = broker.url.replace("redis://", f"redis://{unique}:secret@")
    # So that only the lost connection can tell that the leader is gone.
    env = {"SCHEDULES": repr(schedules), "BROKER_URL": url, "RECORDS_URL": url, "RESULT_URL": url, **LONG}
    try:
        beat = start_beat(APP, env=env)
        other = start_beat(APP, env=env, leads=False)
        other.wait_standing_by()
        for name in entries.keys() - {"refused"}:
            fires = f"Sending due task {name} "
            until(lambda fires=fires: beat.log().count(fires) >= 4, what=f"{name} to be fired", within=60)  # type: ignore[misc]
        beat.kill()
        other.wait_leading(within=30)
        until(lambda: other.log().count("Sending due task plain ") >= 2, what="fires of the other", within=30)
        other.wait_for_log("the connection of")
        log = beat.log() + other.log()
        troubled = {line.split("schedule ")[1].split(":")[0] for line in log.splitlines() if "ERROR" in line}
        assert troubled == {"'refused'"}
        assert "WARNING" not in log
    finally:
        admin.execute_command("ACL", "DELUSER", unique)
