"""Kill switches: what a worker believes, how long, and what it makes of a store that is down or damaged."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened import ConfigurationError, StoreUnavailableError
from celery_hardened.switches import SWITCHES, Switches
from tests.unit.conftest import MakeApp


class Store:
    """A hash that counts how often it is read, and may be down."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.reads = 0
        self.down = False
        self.now = 0.0

    def read(self) -> dict[bytes, bytes]:
        self.reads += 1
        if self.down:
            raise StoreUnavailableError("reading the kill switches", "connection refused")
        return dict(self.stored)

    def write(self, name: str, value: str | None) -> None:
        if self.down:
            raise StoreUnavailableError("throwing a kill switch", "connection refused")
        self.stored.pop(name.encode(), None)
        if value is not None:
            self.stored[name.encode()] = value.encode()

    def switches(self, ttl: float = 5.0) -> Switches:
        """As one more process sees them."""
        return Switches(read=self.read, write=self.write, ttl=ttl, clock=lambda: self.now)


@pytest.fixture
def store() -> Store:
    return Store()


def test_everything_is_on_until_switched_off(store: Store) -> None:
    switches = store.switches()
    assert all(switches.get(name) for name in SWITCHES)
    assert switches.all() == dict.fromkeys(SWITCHES)


def test_a_switch_tells_who_and_why(store: Store) -> None:
    """For other processes too; cleared, it is on and forgotten."""
    ours, theirs = store.switches(), store.switches()
    ours.set("retries", False, by="ann", why="the gateway asked us to stop")
    state = theirs.all()["retries"]
    assert state is not None
    assert (state.on, state.by, state.why) == (False, "ann", "the gateway asked us to stop")
    assert state.at > 1.7e9
    assert (ours.get("retries"), theirs.get("retries"), theirs.get("parking")) == (False, False, True)
    ours.set("retries", True, by="bob", why="it is back")
    assert ours.get("retries")
    ours.clear("retries")
    assert ours.all()["retries"] is None


def test_it_is_read_once_in_a_while(store: Store) -> None:
    """A worker in which everything fails asks the store once in switch_ttl seconds, and follows then."""
    switches = store.switches(ttl=5.0)
    for _ in range(100):
        switches.get("retries")
        switches.get("parking")
    assert store.reads == 1
    store.switches().set("retries", False, by="ann", why="")
    store.now = 4.9
    assert switches.get("retries")
    store.now = 5.0
    assert not switches.get("retries")
    assert store.reads == 2


def test_who_throws_it_sees_it_at_once(store: Store) -> None:
    switches = store.switches()
    assert switches.get("retries")
    switches.set("retries", False, by="ann", why="")
    assert not switches.get("retries")
    switches.clear("retries")
    assert switches.get("retries")


def test_an_outage_changes_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """The last known state stands, also the one that everything is on; the store is not asked again at once."""
    fresh, knowing = store.switches(), store.switches()
    knowing.set("retries", False, by="ann", why="")
    assert not knowing.get("retries")
    store.down, store.now = True, 100.0
    for _ in range(20):
        assert not knowing.get("retries")
        assert fresh.get("retries")
    assert store.reads == 3, "one read before the outage, and one each in it"
    assert caplog.text.count("the last known ones stand") == 2
    store.down, store.now = False, 105.0
    assert not fresh.get("retries")


def test_throwing_it_in_an_outage_is_an_error(store: Store) -> None:
    """Whoever throws a switch must know whether it was thrown."""
    store.down = True
    with pytest.raises(StoreUnavailableError):
        store.switches().set("retries", False, by="ann", why="")
    with pytest.raises(StoreUnavailableError):
        store.switches().all()


@pytest.mark.parametrize(
    "call", [lambda s: s.get("x"), lambda s: s.set("x", True, by="", why=""), lambda s: s.clear("x")]
)
def test_an_unknown_switch_is_refused(store: Store, call: Any) -> None:
    with pytest.raises(ConfigurationError, match="there is no switch 'x'; there are retries, parking"):
        call(store.switches())


@given(st.dictionaries(st.binary(max_size=8) | st.just(b"retries"), st.binary(max_size=40)))
def test_whatever_is_stored_nothing_is_raised(stored: dict[bytes, bytes]) -> None:
    """What cannot be read is ignored: everything is on."""
    store = Store()
    store.stored = stored
    assert store.switches().get("retries") is True


@pytest.mark.parametrize(
    "damaged", ["[]", "7", "null", "{}", '{"on": "false", "by": "a", "why": "", "at": 1}', '{"on": false}', "\ud800"]
)
def test_a_damaged_state_is_ignored_and_told(store: Store, caplog: pytest.LogCaptureFixture, damaged: str) -> None:
    """The others still count."""
    store.stored = {b"retries": damaged.encode("utf-8", "surrogatepass")}
    switches = store.switches()
    switches.set("parking", False, by="ann", why="")
    assert (switches.get("retries"), switches.get("parking")) == (True, False)
    assert "kill switch b'retries' is unreadable" in caplog.text


def test_a_newer_version_may_say_more(store: Store) -> None:
    """Fields we do not know are no reason to ignore that something was switched off."""
    store.stored = {b"retries": json.dumps({"on": False, "by": "a", "why": "b", "at": 1, "until": 2}).encode()}
    assert not store.switches().get("retries")


def test_threads_share_one_read(store: Store) -> None:
    switches = store.switches()
    started = threading.Barrier(8)

    def ask() -> None:
        started.wait()
        switches.get("retries")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.reads == 1


def test_an_app_without_redis_has_switches_of_its_own(make_hardened: MakeApp) -> None:
    """With the in-memory store, for tests of users: no Redis is asked."""
    from celery_hardened import Hardening

    one, other = (Hardening.expect(make_hardened()) for _ in range(2))
    one.switches.set("parking", False, by="ann", why="")
    assert (one.switches.get("parking"), other.switches.get("parking")) == (False, True)
