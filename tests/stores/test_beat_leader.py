"""Several beats in one process, on a real Redis: who leads, for how long it knows so, and how the next one comes."""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis

from celery_hardened.beat.leader import Leadership
from celery_hardened.beat.leader_store import Holder, LeaderStore, own_connection
from celery_hardened.beat.names import Keys
from celery_hardened.beat.standing import Standing
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

#: A lease that none of these tests sees the end of, but those that say so: the machine may stand still for seconds.
TTL = 30.0
LOGGER = "celery_hardened.beat"


class Beat(Leadership):
    """One beat whose main loop is `live`'s thread."""

    def __init__(self, url: str, keys: Keys, name: str, **more: Any) -> None:
        self.news = 0
        poll = more.pop("poll", None)  # seconds between two looks of a standby, else as it is
        super().__init__(
            Redis.from_url(url), keys, ttl=more.pop("ttl", TTL), identity={"host": name, "pid": 1},
            changed=self._count, **more,
        )  # fmt: skip
        self._poll = poll or self._poll

    def _count(self) -> None:
        self.news += 1


@pytest.fixture
def keys(unique: str) -> Keys:
    return Keys(unique)


@pytest.fixture
def make(each_redis_url: str, keys: Keys) -> Iterator[Callable[..., Beat]]:
    """Make and start a beat; its main loop lives until it is stopped after the test."""
    beats: list[Beat] = []
    over = threading.Event()

    def touch() -> None:
        for number in itertools.count():
            if over.wait(0.05):
                return
            for beat in list(beats):
                beat.touch(1000.0 + number)

    main_loops = threading.Thread(target=touch, daemon=True)
    main_loops.start()

    def start(name: str, *, url: str = each_redis_url, alive: bool = True, **more: Any) -> Beat:
        beat = Beat(url, keys, name, **more)
        beat.start()
        if alive:
            beats.append(beat)
        started.append(beat)
        return beat

    started: list[Beat] = []
    yield start
    over.set()
    main_loops.join(10)
    for beat in started:
        beat.stop()


def leads(beat: Leadership, within: float = 25.0) -> Standing:
    return until(beat.standing, within=within, what="it to lead", every=0.005)


def looks_of(beat: Beat) -> list[Any]:
    """What a standby finds at its looks from now on."""
    seen: list[Any] = []
    is_gone = beat._gone.is_gone
    beat._gone.is_gone = lambda holder: (seen.append(holder), is_gone(holder))[1]  # type: ignore[method-assign]
    return seen


def at(url: str, proxy: TcpProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/{url.rsplit('/', 1)[1]}"


def port_of(url: str) -> int:
    return int(url.split(":")[2].split("/")[0])


# --- one leads ----------------------------------------------------------------------------------------------------


def test_one_of_three_leads_and_says_so(make: Callable[..., Beat], caplog: pytest.LogCaptureFixture) -> None:
    """The others know who does; each says it once."""
    caplog.set_level(logging.INFO, LOGGER)
    one = make("one", ttl=90.0)  # a third of it is longer than the change stamp is waited for
    first = leads(one)
    two, three = make("two"), make("three")
    until(lambda: two.holder and three.holder, within=25, what="the others to stand by")
    assert (first.term, one.reachable, one.problem) == (1, True, None)
    assert (two.standing(), three.standing()) == (None, None)
    assert two.holder == {"host": "one", "pid": 1}
    assert one.server_ahead is not None
    assert abs(one.server_ahead) < 10
    before = one.stamp
    one._client.incr(one._keys.stamp)
    until(lambda: one.stamp != before, within=25, what="the change stamp to be seen")
    assert one.standing() == first, "renewed under the same token"
    assert [m for m in caplog.messages if "leads (term 1): nobody led before" in m]
    assert len([m for m in caplog.messages if "stands by: one (pid 1) leads (term 1)" in m]) == 2


def test_a_release_wakes_one_standby_at_once(make: Callable[..., Beat], caplog: pytest.LogCaptureFixture) -> None:
    """Three times over: the next one leads long before it would have looked by itself, and knows the clock before."""
    caplog.set_level(logging.INFO, LOGGER)
    one, *others = (partial(make, name, ttl=60.0, poll=15.0) for name in ("one", "two", "three", "four"))
    beats = [one()]
    leads(beats[0])
    beats += [other() for other in others]
    until(lambda: all(beat.holder for beat in beats[1:]), within=25, what="the others to stand by")
    for term in (2, 3, 4):
        leader = next(beat for beat in beats if beat.standing())
        until(lambda: leader._store and clock_of(leader) is not None, within=25, what="its clock to be kept")  # noqa: B023
        beats.remove(leader)
        leader.release()
        leader.release()
        assert leader.standing() is None
        until(lambda: any(beat.standing() for beat in beats), within=10, what="another to be woken", every=0.002)
        (found,) = [beat for beat in beats if beat.standing()]
        assert leads(found).term == term
        assert (found.clock_mark or 0) >= 1000.0
    assert [m for m in caplog.messages if "leads (term 2): one (pid 1) let go" in m]
    assert beats[0].standing(), "the last one is not disturbed by the others, which stand no more"


def clock_of(beat: Beat) -> bytes | None:
    found: Any = beat._client.hget(beat._keys.leader, "clock")
    return found


def test_who_let_go_stands_no_more(make: Callable[..., Beat]) -> None:
    """Also if it lets go before it ever led: an election that was under way is given back."""
    one = make("one")
    leads(one)
    one.release()
    two = make("two")
    leads(two)
    two.stop()
    assert not one._client.exists(one._keys.leader)
    assert two._thread is not None
    assert not two._thread.is_alive()
    started = Beat(one._client.get_connection_kwargs() and "redis://127.0.0.1:1/0", one._keys, "never")
    started.stop()


def test_a_lead_that_was_taken_while_letting_go_is_given_back(each_redis_url: str, keys: Keys) -> None:
    """The answer to the election comes after ``release()``: it is let go of, whoever was quicker."""
    beat = Beat(each_redis_url, keys, "one")
    beat.start()
    until(beat.standing, within=25, what="it to lead", every=0.005)
    beat.stop()
    real = beat._store.acquire

    def acquire(*args: Any, **more: Any) -> Any:
        beat._candidate, candidate = "", beat._candidate  # the release comes before the token is known
        beat.release()
        beat._candidate = candidate
        return real(*args, **more)

    beat._store.acquire = acquire  # type: ignore[method-assign]
    beat._resigned = False
    beat._stand()
    assert beat.standing() is None
    assert not Redis.from_url(each_redis_url).exists(keys.leader)


# --- it is refused, or silent -------------------------------------------------------------------------------------


def test_a_lead_that_is_passed_on_goes_to_another_and_may_come_back(make: Callable[..., Beat]) -> None:
    """A beat that is not fit to lead wakes a standby, and does not run against it; alone, it leads again."""
    unfit = make("unfit")
    standing = leads(unfit)
    other = make("other")
    until(lambda: other.holder is not None, what="the other to stand by")
    unfit.pass_on(standing, "its schedules could not be read", pause=3600.0)
    assert unfit.standing() is None
    assert leads(other).term == standing.term + 1

    other.pass_on(leads(other), "nor this one's", pause=1.0)
    assert other.standing() is None
    assert leads(other).term == standing.term + 2


def test_a_refused_leader_stands_by_at_once(make: Callable[..., Beat], caplog: pytest.LogCaptureFixture) -> None:
    """It says why, and may lead again under another token; word of an older standing changes nothing."""
    one = make("one")
    first = leads(one)
    one.refused(first)
    assert one.standing() is None
    one._client.delete(one._keys.leader)
    second = leads(one)
    assert second.term == first.term + 1
    assert second.owner != first.owner
    one.refused(first)
    assert one.standing() == second
    until(lambda: "Redis refused its step" in caplog.text, within=25, what="the reason to be told")


def test_a_leader_whose_record_is_anothers_is_told_by_its_renewal(make: Callable[..., Beat]) -> None:
    """Nobody has to wait for a script that is refused: the next renewal says so."""
    one = make("one")
    leads(one)
    thief = LeaderStore(one._client, one._keys, ttl=60)
    known = {"owner": "thief", "client": "", "identity": json.dumps({"host": "thief", "pid": 1})}
    one._client.hset(one._keys.leader, mapping=known)  # at once, or its own next renewal might be quicker
    until(lambda: one.holder == {"host": "thief", "pid": 1}, within=25, what="it to see the other")
    assert one.standing() is None
    assert isinstance(thief.acquire("x", client="", identity={}), Holder), "it took nothing back"


def test_a_beat_whose_main_loop_is_silent_lets_go(make: Callable[..., Beat], caplog: pytest.LogCaptureFixture) -> None:
    """A standby takes over; the main loop's next sign of life makes it a standby."""
    one = make("one", alive=False, stalled_after=0.6)
    until(lambda: one.touch() or one.standing(), within=25, what="it to lead", every=0.005)
    two = make("two")
    leads(two)
    assert one.standing() is None
    assert "has been silent for" in caplog.text

    def lives_and_stands_by() -> bool:
        one.touch()  # again and again: on a busy machine its thread may not look before one sign of life is old
        return one.holder == {"host": "two", "pid": 1}

    until(lives_and_stands_by, within=25, what="it to stand by again")


# --- Redis is away ------------------------------------------------------------------------------------------------


def test_a_cut_connection_costs_no_lead(make: Callable[..., Beat], each_redis_url: str) -> None:
    """Cut, not silent: the leader is back on another connection before a standby believes that it died."""
    proxy = TcpProxy(port_of(each_redis_url))
    try:
        one = make("one", url=at(each_redis_url, proxy))
        first = leads(one)
        # It looks so seldom that a machine on which the leader's thread stands still for a moment has not lost it.
        two = make("two", poll=2.0)
        for _ in range(3):
            until(lambda: two.holder, within=25, what="the other to stand by")
            until(lambda: one._client.hget(one._keys.leader, "client") not in (None, b""), within=25, what="an id")
            known = two._client.hget(two._keys.leader, "client")
            proxy.reset()
            until(
                lambda: two._client.hget(two._keys.leader, "client") != known,  # noqa: B023
                within=25, what="the new connection to be recorded",
            )  # fmt: skip
        looks = looks_of(two)
        until(lambda: len(looks) >= 2, within=25, what="the other to have looked as often as a belief takes")
        assert one.standing() == first
        assert two.standing() is None
        one.stop()
    finally:
        proxy.stop()


def test_a_leader_that_cannot_reach_redis_stands_down_before_another_leads(
    make: Callable[..., Beat], each_redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection falls silent: on one clock, its standing ends before the next one begins, each time over.

    All standings are sampled together; two at one moment would be seen.
    """
    ttl, told = 1.5, ("Redis did not answer its renewals in time", "Redis is away")
    proxies = [TcpProxy(port_of(each_redis_url)) for _ in range(3)]
    try:
        beats = [make(f"b{n}", url=at(each_redis_url, proxy), ttl=ttl) for n, proxy in enumerate(proxies)]
        # Three leads that silence has ended: a machine that stands still for a lease may have ended one before, or let
        # the next one lead before the silent one has waited for an answer.
        while min(map(caplog.text.count, told)) < 3:
            number, leader = until(
                lambda: next(((n, b) for n, b in enumerate(beats) if b.standing()), None),
                within=25, what="one to lead", every=0.005,
            )  # fmt: skip
            proxies[number].silence()
            silent, began, trusted = leader._monotonic(), time.monotonic(), 0.0
            while True:
                held = leader._held
                trusted = trusted if held is None else held.until
                # One after the other: what still stands at the end of the row stood all the time.
                standing = [beat for beat in beats if beat.standing() is not None]
                standing = [beat for beat in standing if beat.standing() is not None]
                assert len(standing) <= 1, "two lead"
                if standing and standing != [leader]:
                    break
                assert time.monotonic() - began < 25, "nobody took over"
                time.sleep(0.002)
            assert leader.standing() is None
            assert trusted - silent <= ttl, "it did not stand down in time"
            proxies[number].heal()
            until(lambda: leader.reachable and (leader.holder or leader.standing()), within=25, what="it to be back")  # noqa: B023
        for beat in beats:
            beat.stop()
    finally:
        for proxy in proxies:
            proxy.stop()


def test_redis_restarts_and_has_forgotten_everything(
    tmp_path: Any, keys: Keys, make: Callable[..., Beat], caplog: pytest.LogCaptureFixture
) -> None:
    """Both say once that it is away and once that it is back, one leads again, and its term is higher."""
    caplog.set_level(logging.INFO, LOGGER)
    server = RedisServer(tmp_path / "mortal")
    server.start()
    try:
        url = f"redis://127.0.0.1:{server.port}/0"
        beats = [make(name, url=url, ttl=5.0) for name in ("one", "two")]
        until(lambda: [b for b in beats if b.standing()] and all(b.reachable for b in beats), within=25, what="a lead")
        server.kill()
        until(lambda: not any(b.reachable for b in beats), within=25, what="both to notice")
        until(lambda: not any(b.standing() for b in beats), within=25, what="the trust to end")
        assert all("reading" in (b.problem or "") or "failed" in (b.problem or "") for b in beats)
        server.start()
        until(lambda: [b for b in beats if b.standing()], within=25, what="one to lead again")
        until(lambda: all(b.reachable for b in beats), within=25, what="both to be back")
        leader = until(lambda: next((b for b in beats if b.standing()), None), within=25, what="one to lead still")
        assert leads(leader).term >= 2
        until(lambda: caplog.text.count("Redis is back") == 2, within=25, what="both to say so")
        assert caplog.text.count("Redis is away") == 2
        for beat in beats:
            beat.stop()
    finally:
        server.kill()


def test_a_server_whose_clock_is_wrong_is_said_once(
    make: Callable[..., Beat], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More than 30 s between the two clocks: a word when it begins, and one when it is over."""
    caplog.set_level(logging.INFO, LOGGER)
    one = make("one")
    leads(one)
    now = time.time
    news: list[float] = [100.0]
    monkeypatch.setattr("celery_hardened.beat.leader.time.time", lambda: now() - news[0])
    until(lambda: (one.server_ahead or 0) > 99, within=25, what="the difference to be seen")
    news[0] = 0.0
    until(lambda: "agree again" in caplog.text, within=25, what="the end to be told")
    assert len(re.findall(r"the clock of Redis is \+\d+ s ahead", caplog.text)) == 1


# --- what it may ask for ------------------------------------------------------------------------------------------


def test_without_the_client_commands_the_lease_decides(
    make: Callable[..., Beat], each_redis_url: str, caplog: pytest.LogCaptureFixture, unique: str
) -> None:
    """An ACL user that may not ask CLIENT: a dead leader's lease runs out first; the warning comes once."""
    admin = Redis.from_url(each_redis_url)
    admin.execute_command("ACL", "SETUSER", unique, "on", ">pw", "~*", "+@all", "-client")
    url = each_redis_url.replace("redis://", f"redis://{unique}:pw@")
    one = make("one", url=url)
    leads(one)
    two = make("two")
    until(lambda: two.holder, within=25, what="the other to stand by")
    assert admin.hget(one._keys.leader, "client") == b"", "it does not know its own"
    two.stop()
    one.stop()

    dead = LeaderStore(admin, one._keys, ttl=60)
    dead.acquire("dead", client="999999999", identity={"host": "dead", "pid": 1})
    three = make("three", url=url)
    until(lambda: "CLIENT LIST" in caplog.text, within=25, what="the warning")
    looks = looks_of(three)
    until(lambda: len(looks) >= 3, within=25, what="it to have looked as often as a belief takes")
    assert three.standing() is None, "the lease is not over yet"
    admin.pexpire(one._keys.leader, 1)
    assert leads(three).term == 3
    assert three._taken is not None
    assert three._taken.how == "expired"
    assert caplog.text.count("CLIENT LIST") == 1


def test_a_leader_whose_connection_is_gone_is_replaced_before_its_lease_ends(
    make: Callable[..., Beat], each_redis_url: str, keys: Keys
) -> None:
    """A lease of a minute, and the next one leads within seconds."""
    store = LeaderStore(Redis.from_url(each_redis_url), keys, ttl=60)
    store.acquire("dead", client="999999999", identity={"host": "dead", "pid": 1})
    two = make("two")
    assert leads(two).term == 2
    assert two._taken is not None
    assert (two._taken.how, two._taken.after["host"]) == ("client_gone", "dead")


def test_its_connection_is_one_and_impatient(each_redis_url: str) -> None:
    """Whatever the client it is made from: one connection, time-outs of a third of a lease, the same credentials."""
    patient = Redis.from_url(each_redis_url, socket_timeout=60, client_name="beat", max_connections=50)
    own = own_connection(patient, timeout=1.0)
    assert own.client_getname() == "beat"
    assert own.connection_pool.max_connections == 1
    assert own.client_id() == own.client_id()
    connection = own.connection_pool.get_connection()
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (1.0, 1.0)
    own.connection_pool.release(connection)
    assert (
        own_connection(
            Redis.from_url(each_redis_url, socket_timeout=0.2), timeout=1.0
        ).connection_pool.connection_kwargs["socket_timeout"]
        == 0.2
    )
    assert patient.connection_pool.connection_kwargs["socket_timeout"] == 60, "its own are left alone"
