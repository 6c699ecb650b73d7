"""Beats in processes of their own that are killed, stopped and ended: who leads next, and how soon.

Each process acts as often as it can while it has a standing, and writes down when, by the
machine's one monotonic clock.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import pytest
from celery import Celery
from redis import Redis

from celery_hardened import harden
from celery_hardened.beat.leader_store import LeaderStore, Taken
from celery_hardened.beat.names import Keys
from tests.support.cli import answers, call
from tests.support.notes import notes
from tests.support.proc import Proc
from tests.support.until import until

TTL = 5.0

BEAT = """
import json, os, signal, sys, time
from redis import Redis
from celery_hardened.beat.leader import Leadership
from celery_hardened.beat.names import Keys
from tests.support.notes import note
import logging

logging.basicConfig(level="INFO", format="%(message)s")
name, url, prefix, more = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
if more.pop("fork", False):
    client = Redis.from_url(url)
    client.ping()
    beat = Leadership(client, Keys(prefix), identity={"host": name, "pid": os.getpid()}, changed=lambda: None, **more)
    if os.fork():
        os.wait()
        sys.exit()
else:
    beat = Leadership(
        Redis.from_url(url), Keys(prefix), identity={"host": name, "pid": os.getpid()}, changed=lambda: None, **more
    )

def end(signal, frame):
    beat.release()
    raise SystemExit

signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, lambda signal, frame: time.sleep(600))
beat.start()
try:
    while True:
        beat.touch(time.time())
        before = time.monotonic()
        standing = beat.standing()
        after = time.monotonic()
        if standing:
            note("acts", name, standing.term, before, after)
        elif beat.holder:
            note(f"stands-by-{name}", before)
        time.sleep(0.003)
finally:
    beat.stop()
"""


@dataclass(frozen=True)
class Act:
    """One act of a leader; it had its standing somewhere between *before* and *after*."""

    name: str
    term: int
    before: float
    after: float


def acts(out: Path) -> list[Act]:
    found = [line.split() for line in notes(out, "acts")]
    return [Act(name, int(term), float(before), float(after)) for name, term, before, after in found]


def check_one_at_a_time(out: Path) -> None:
    """The acts of one term are over before those of the next begin, and a term is one beat's."""
    by_term: dict[int, list[Act]] = {}
    for act in acts(out):
        by_term.setdefault(act.term, []).append(act)
    terms = sorted(by_term)
    assert all(len({act.name for act in by_term[term]}) == 1 for term in terms)
    for earlier, later in pairwise(terms):
        assert max(act.before for act in by_term[earlier]) <= min(act.after for act in by_term[later])


class StartBeat(Protocol):
    def __call__(self, name: str, **more: object) -> Proc: ...


@pytest.fixture
def start_beat(processes: list[Proc], tmp_path: Path, records_url: str, unique: str, out: Path) -> Iterator[StartBeat]:
    def start(name: str, **more: object) -> Proc:
        given = json.dumps({"ttl": TTL, **more})
        argv = [sys.executable, "-c", BEAT, name, records_url, unique, given]
        beat = Proc(name, argv, cwd=tmp_path, env={"OUT": str(out), "PYTHONPATH": str(Path(__file__).parents[2])})
        processes.append(beat)
        beat.start()
        return beat

    yield start
    check_one_at_a_time(out)


def leads(out: Path, name: str, within: float = 60.0) -> Act:
    return until(
        lambda: next((act for act in acts(out) if act.name == name), None),
        within=within, what=f"{name} to lead", every=0.01,
    )  # fmt: skip


@pytest.fixture
def pair(start_beat: StartBeat, out: Path) -> Callable[..., tuple[Proc, Proc]]:
    """Two beats, of which ``one`` leads and ``two`` stands by."""

    def start(**more: object) -> tuple[Proc, Proc]:
        one = start_beat("one", **more)
        leads(out, "one")
        two = start_beat("two", **more)
        until(lambda: notes(out, "stands-by-two"), within=60, what="two to stand by")
        return one, two

    return start


def test_sigterm_hands_over_at_once(pair: Callable[..., tuple[Proc, Proc]], out: Path) -> None:
    """Promised: 0.5 s; measured about 10 ms; here with a lease of a minute, so that only its word can tell."""
    one, two = pair(ttl=60.0)
    ended = time.monotonic()
    one.signal(signal.SIGTERM)
    assert leads(out, "two").before - ended < 30
    assert one.wait() == 0
    two.wait_for_log("let go")  # it may act before that is written: another thread of it tells


def test_a_killed_leader_is_replaced_long_before_its_lease_ends(
    pair: Callable[..., tuple[Proc, Proc]], out: Path
) -> None:
    """Promised: 2 s; here with a lease of a minute, so that only the lost connection can tell."""
    one, two = pair(ttl=60.0)
    killed = time.monotonic()
    one.kill()
    assert leads(out, "two").before - killed < 30
    two.wait_for_log("leads (term 2): the connection of one")  # it may act before that is written


def test_a_stopped_leader_is_replaced_when_its_lease_ends_and_never_acts_again(
    pair: Callable[..., tuple[Proc, Proc]], out: Path, records_url: str, unique: str
) -> None:
    """Promised: ttl + 1 s. When it goes on, it has no standing before its renewal is refused: it stands by."""
    one, _ = pair(ttl=4.0)
    owner = Redis.from_url(records_url).hget(Keys(unique).leader, "owner")
    one.pause()
    stopped = time.monotonic()
    assert leads(out, "two").before - stopped < 5 * (4.0 + 1)
    since = len(one.log())
    one.resume()
    one.wait_for_log("this beat stands by: two", since=since)
    assert "leads no more (term 1)" in one.log()
    assert max(act.before for act in acts(out) if act.name == "one") < stopped
    store = LeaderStore(Redis.from_url(records_url), Keys(unique), ttl=TTL)
    assert owner is not None
    assert not store.renew(owner.decode(), client="1", clock=None, idle=0).held


def test_a_stop_is_no_stall(pair: Callable[..., tuple[Proc, Proc]], out: Path) -> None:
    """A process that was stopped for longer than a main loop may be silent goes on as a standby, and does not end."""
    one, _ = pair(ttl=4.0, stalled_after=5.0, stalled_exit=6.0)
    one.pause()
    took = leads(out, "two")
    until(lambda: time.monotonic() > took.before + 5, within=30, what="a silence that would end the process")
    since = len(one.log())
    one.resume()
    one.wait_for_log("this beat stands by: two", since=since)
    assert "silent" not in one.log()
    assert one.running


def test_a_main_loop_that_is_dead_ends_the_process(pair: Callable[..., tuple[Proc, Proc]], out: Path) -> None:
    """It lets go first, so that another leads, and then ends with 75, for a supervisor to start it again."""
    one, _ = pair(stalled_after=1.0, stalled_exit=3.0)
    one.signal(signal.SIGUSR1)
    leads(out, "two")
    assert one.wait() == 75
    assert "lets go of the lead" in one.log()


def test_it_may_be_made_before_a_fork(start_beat: StartBeat, out: Path) -> None:
    """An embedded beat runs in a forked child, of a parent that has used the same client."""
    start_beat("one", fork=True)
    leads(out, "one")


# --- hardened leader ----------------------------------------------------------------------------------------------


@pytest.fixture
def app(records_url: str, unique: str) -> Celery:
    app = Celery("shop", broker=records_url, set_as_current=False)
    app.conf.update(hardened_key_prefix=unique)
    return harden(app)


def test_the_command_tells_who_leads(app: Celery, records_url: str, unique: str) -> None:
    """Nobody yet; one that is well; one whose connection is gone; one whose loop is silent; one that let go."""
    none = call(app, "leader")
    assert (none.exit_code, none.stdout) == (1, "")
    assert "No beat has led yet" in none.stderr
    client = Redis.from_url(records_url, max_connections=1)
    store = LeaderStore(client, Keys(unique), ttl=60)
    id = store.client_id()
    assert isinstance(store.acquire("a", client=id, identity={"host": "h1", "pid": 7, "version": "1.0"}), Taken)
    store.renew("a", client=id, clock=5.5, idle=0)

    done = call(app, "leader", "--json")
    (found,) = answers(done)
    assert done.exit_code == 0
    assert {
        "leads": True,
        "term": 1,
        "host": "h1",
        "pid": 7,
        "version": "1.0",
        "how": "free",
        "clock": 5.5,
    }.items() <= found.items()
    assert found["trouble"] is None
    assert found["since"] <= found["tick"] <= found["now"]
    assert 50 < found["left"] <= 60
    shown = call(app, "leader").stdout
    assert "h1" in shown
    assert "nobody led before" in shown

    store.renew("a", client=id, clock=5.5, idle=30)
    assert "silent for 30 s" in call(app, "leader").stderr
    store.renew("a", client="999999999", clock=5.5, idle=0)
    assert "connection is gone" in call(app, "leader").stderr

    store.release("a")
    gone = call(app, "leader", "--json")
    assert gone.exit_code == 1
    assert (answers(gone)[0]["leads"], answers(gone)[0]["how"]) == (False, "released")
    assert "The last leader was h1 (pid 7), term 1." in call(app, "leader").stdout


def test_the_command_watches(app: Celery, records_url: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each change, until Ctrl-C, which is 130 as everywhere."""
    store = LeaderStore(Redis.from_url(records_url), Keys(unique), ttl=60)
    steps = iter([
        lambda: store.acquire("a", client="", identity={"host": "h1", "pid": 1}),
        lambda: None,
        lambda: store.release("a"),
        lambda: store.acquire("b", client="", identity={"host": "h2", "pid": 2}),
    ])  # fmt: skip

    here, sleep = threading.get_ident(), time.sleep

    def pause(seconds: float) -> None:
        if threading.get_ident() != here:  # a thread that another test has left
            return sleep(seconds)
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()
        return None

    monkeypatch.setattr(time, "sleep", pause)
    done = call(app, "leader", "--watch", "--json")
    assert done.exit_code == 130
    assert [(line["leads"], line["term"]) for line in answers(done)] == [(False, 0), (True, 1), (False, 1), (True, 2)]


def test_the_fields_of_the_command_are_on_its_page(app: Celery) -> None:
    """Every field of the JSON answer is described, and no other."""
    from tests.unit.test_cli_reference import named_fields, section

    assert named_fields(section("Leader in JSON")) == set(answers(call(app, "leader", "--json"))[0])


def test_a_store_that_does_not_answer_is_said(unique: str) -> None:
    """Exit code 4, as of every command."""
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    harden(app)
    assert call(app, "leader").exit_code == 4
