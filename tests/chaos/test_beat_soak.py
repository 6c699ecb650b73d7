"""The soak of beats in short, and what its judge finds."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_hardened.beat.names import task_id_of
from celery_hardened.beat.record import Record
from tests.chaos.beat_soak import beat_soak
from tests.chaos.beat_soak_fleet import WEIGHTS, plan
from tests.chaos.beat_soak_ledger import Account, Notes, judge, published
from tests.chaos.beat_soak_plan import ENTRIES, Entry
from tests.fixtures.servers import missing
from tests.support.rabbitmq import RabbitMQ
from tests.support.wallshift import compiler

pytestmark = pytest.mark.chaos

NAME, ANCHOR = "steady-0", 1_700_000_000.25
BEGAN = {name: Record(cursor=ANCHOR, anchor=ANCHOR, mark="m") for name in ENTRIES}


def said(slot: int, outcome: str = "fired", *, late: float = 0.01, **more: Any) -> dict[str, Any]:
    """A line of the history, of the *slot*-th slot."""
    at = ANCHOR + slot
    return {"at": round(at + late, 3), "outcome": outcome, "term": 1, "slot": at, **more}


def judged(
    lines: list[dict[str, Any]],
    *,
    upto: int = 3,
    messages: dict[int, int] | None = None,
    runs: dict[int, int] | None = None,
    name: str = NAME,
    final: Record | None = None,
) -> Account:
    """The account of one schedule of which *lines* are said; each slot that is said to be fired ran once, if nothing
    else is given."""
    fired = [round(line["slot"] - ANCHOR) for line in lines if line["outcome"] == "fired"]
    there = dict.fromkeys(fired, 1) if messages is None else messages
    notes = Notes()
    for slot, count in (there if runs is None else runs).items():
        key = (name, round((ANCHOR + slot) * 1000))
        notes.starts[key] = notes.ends[key] = count
        notes.missed[key] = 0
        notes.ids[key] = {task_id_of(name, ANCHOR + slot)}
    passed = sum(line.get("count", 1) for line in lines if line["outcome"] != "fired")
    if final is None:
        final = replace(BEGAN[name], cursor=ANCHOR + upto, fired=len(fired), passed={"x": passed} if passed else {})
    sent = Counter({task_id_of(name, ANCHOR + slot): count for slot, count in there.items()})
    return judge(BEGAN, {**BEGAN, name: final}, {name: lines}, notes, sent)


def test_what_is_as_it_should_be_is_clean() -> None:
    """Each slot once."""
    account = judged([said(1), said(2), said(3)])
    assert (account.slots, account.fired) == (3, 3)
    assert [*account.lost, *account.doubled, *account.unlawful, *account.wrong, *account.ran_twice] == []


def test_lost_slots_are_found() -> None:
    """Nothing is said of one; one is said to be fired and has no message; one has a message and did not run."""
    assert len(judged([said(1), said(3)]).lost) == 1
    assert len(judged([said(1), said(2), said(3)], messages={1: 1, 2: 1}).lost) == 1
    assert len(judged([said(1), said(2), said(3)], runs={1: 1, 2: 1}).lost) == 1


def test_doubles_are_found() -> None:
    """Two messages of a slot, two lines, a message of a slot that was passed, a body that ran twice."""
    every = [said(1), said(2), said(3)]
    assert len(judged(every, messages={1: 1, 2: 2, 3: 1}, runs={1: 1, 2: 1, 3: 1}).doubled) == 1
    assert len(judged([*every, said(2)]).doubled) == 1
    gone = said(2, "coalesced", late=40)
    assert len(judged([said(1), gone, said(3)], messages={1: 1, 2: 1, 3: 1}).doubled) == 1
    assert len(judged(every, messages={1: 1, 2: 1, 3: 1}, runs={1: 1, 2: 2, 3: 1}).ran_twice) == 1


def test_what_a_policy_does_not_allow_is_found() -> None:
    """A reason of another policy, a slot that was given up before its grace was over, one that was early."""
    assert not judged([said(1, "coalesced", late=31), said(2), said(3)]).unlawful
    assert judged([said(1, "coalesced", late=29), said(2), said(3)]).unlawful
    assert judged([said(1, "skipped", late=31), said(2), said(3)]).unlawful
    assert judged([said(1, late=-0.1), said(2), said(3)]).unlawful


def test_what_is_no_slot_is_found() -> None:
    """A run between two slots, a message of none, another anchor, a count that is wrong."""
    assert judged([said(1), said(2), said(3)], runs={1: 1, 2: 1, 3: 1, 9: 1}).wrong
    assert judged([said(1), said(2), said(3)], messages={1: 1, 2: 1, 3: 1, 9: 1}, runs={1: 1, 2: 1, 3: 1}).wrong
    assert judged([said(1), said(2), said(3)], final=replace(BEGAN[NAME], cursor=ANCHOR + 3, fired=4)).wrong
    moved = replace(BEGAN[NAME], cursor=ANCHOR + 3, fired=3, anchor=ANCHOR - 0.5)
    assert judged([said(1), said(2), said(3)], final=moved).wrong


@pytest.mark.parametrize(
    ("entry", "anchor", "after", "upto", "expected"),
    [
        (Entry(name="x"), 250, 250, 3250, [1250, 2250, 3250]),
        (Entry(name="x"), 250, 1250, 3249, [2250]),
        (Entry(name="x", period=0.5), 0, 0, 1000, [500, 1000]),
        (Entry(name="x", period=None), 61_234, 61_234, 180_000, [120_000, 180_000]),
        (Entry(name="x"), 250, 250, 250, []),
    ],
)
def test_slots_by_arithmetic(entry: Entry, anchor: int, after: int, upto: int, expected: list[int]) -> None:
    """Later than where it began, up to the cursor; a crontab's are full minutes."""
    assert list(entry.slots(anchor, after, upto)) == expected


def test_the_log_of_a_server_is_read(tmp_path: Path) -> None:
    """Pushes to the queue are counted in all its files, other writes and what is given back are not."""

    def command(*words: str) -> str:
        return f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)

    def message(task_id: str) -> str:
        return json.dumps({"headers": {"id": task_id}})

    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    first = command("SELECT", "0") + command("LPUSH", "soak", message("a")) + command("LPUSH", "other", message("a"))
    (folder / "x.aof.1.incr.aof").write_bytes(first.encode())
    second = "#TS:1700000000\r\n" + command("RPUSH", "soak", message("b")) + command("LPUSH", "soak", message("a"))
    (folder / "x.aof.2.incr.aof").write_bytes(second.encode())
    assert published(tmp_path, b"soak") == {"a": 2}


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_plan_has_each_kind_of_fault(broker: str) -> None:
    """All kinds that the broker knows, restarts of the servers and a clock ahead; the same dice plan the same."""
    kinds = plan(random.Random(1), count=20, broker=broker, restarts=2)
    expected = {*WEIGHTS, "restart Redis", "clock ahead", "restart broker"}
    assert set(kinds) == expected - ({"cut from broker", "restart broker"} if broker == "redis" else set())
    assert kinds.count("restart Redis") == 2
    assert kinds == plan(random.Random(1), count=20, broker=broker, restarts=2)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_short_soak_of_beats(tmp_path: Path, broker: str) -> None:
    """Beats killed, ended, frozen in mid-burst, cut off, their clock an hour ahead, Redis restarted: each slot of 220
    schedules is fired once, or passed by its policy."""
    words = f"--minutes 0.5 --every 3 --restarts 1 --ttl 2 --seed 7 --broker {broker} --server valkey"
    if compiler() is None:
        missing("gcc")
    if broker == "rabbitmq" and not RabbitMQ.available():
        missing("rabbitmq-server")
    report = beat_soak(words.split(), directory=tmp_path)
    told = "\n".join(report.lines())
    assert report.clean, told
    assert sum(report.faults.values()) >= 6, told
    assert report.account.fired > 500, told
