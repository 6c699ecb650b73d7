"""The steps of the leadership in Redis: each transition, and all of them against a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis import Redis

from celery_hardened.beat.leader_store import KEEP, Holder, LeaderStore, Taken
from celery_hardened.beat.names import Keys
from tests.support.until import until

TTL = 60.0


@pytest.fixture
def client(each_redis_url: str) -> Iterator[Redis]:
    client = Redis.from_url(each_redis_url)
    yield client
    client.close()


@pytest.fixture
def keys(unique: str) -> Keys:
    return Keys(unique)


@pytest.fixture
def store(client: Redis, keys: Keys) -> LeaderStore:
    return LeaderStore(client, keys, ttl=TTL)


def take(store: LeaderStore, owner: str, *, client: str = "7", seen: int = 0) -> Taken:
    answer = store.acquire(owner, client=client, identity={"host": f"host-{owner}", "pid": 1}, seen=seen)
    assert isinstance(answer, Taken)
    return answer


def ask(store: LeaderStore, owner: str) -> Holder:
    answer = store.acquire(owner, client="8", identity={"host": owner, "pid": 2})
    assert isinstance(answer, Holder)
    return answer


# --- to lead ------------------------------------------------------------------------------------------------------


def test_the_first_one_leads_and_others_are_told_who_does(store: LeaderStore) -> None:
    """Nobody led: term 1, no mark. The next asker learns owner, connection, term and identity, and changes nothing."""
    taken = take(store, "a")
    assert (taken.term, taken.mark, taken.how, taken.after) == (1, None, "free", {})

    holder = ask(store, "b")
    assert (holder.owner, holder.client, holder.term, holder.identity["host"]) == ("a", "7", 1, "host-a")
    assert TTL - 5 < holder.left <= TTL
    assert store.renew("a", client="7", clock=None, idle=0).held


def test_an_election_is_repeatable(store: LeaderStore, client: Redis, keys: Keys) -> None:
    """An answer that was lost on the way: the same owner gets the same term, mark and reason, and a whole lease."""
    take(store, "a")
    store.renew("a", client="7", clock=123.456, idle=0)
    store.release("a")
    first = take(store, "b")
    client.pexpire(keys.leader, 20_000)
    again = take(store, "b", client="9")
    assert (again.term, again.mark, again.how, again.after) == (first.term, first.mark, first.how, first.after)
    assert (again.term, again.mark, again.how) == (2, 123.456, "released")
    assert client.pttl(keys.leader) > 20_000
    assert ask(store, "c").client == "9"


@pytest.mark.parametrize("how", ["released", "client_gone", "expired"])
def test_the_next_leader_is_told_how_the_last_one_ended(
    store: LeaderStore, client: Redis, keys: Keys, how: str
) -> None:
    """Who it was, how it ended, and what its clock said last: also after its record is gone."""
    take(store, "a")
    assert store.renew("a", client="7", clock=1700000000.125, idle=0).held
    if how == "released":
        assert store.release("a")
    elif how == "client_gone":
        assert store.depose("a", client="7")
    else:
        client.delete(keys.leader)
    record = store.read()
    assert (record.leads, record.how, record.term, record.clock) == (False, how, 1, 1700000000.125)

    taken = take(store, "b")
    assert (taken.term, taken.how, taken.mark, taken.after["host"]) == (2, how, 1700000000.125, "host-a")


def test_a_lease_runs_out(client: Redis, keys: Keys) -> None:
    """Without a renewal nobody leads any more, the renewal that comes too late is refused, and others may lead."""
    short = LeaderStore(client, keys, ttl=0.05)
    take(short, "a")
    until(lambda: not client.exists(keys.leader), within=10, what="the lease to run out")
    assert not short.renew("a", client="7", clock=1.0, idle=0).held
    assert not client.exists(keys.leader)
    assert take(short, "b").how == "expired"


def test_a_server_that_forgot_everything_goes_on_with_the_terms(store: LeaderStore, client: Redis, keys: Keys) -> None:
    """The term rises over a loss of all keys, as long as an asker knows the last one."""
    for owner in "abc":
        take(store, owner)
        store.release(owner)
    client.delete(keys.term)
    assert take(store, "d", seen=3).term == 4


# --- to stay, and to go -------------------------------------------------------------------------------------------


def test_only_the_owner_renews(store: LeaderStore, client: Redis, keys: Keys) -> None:
    """A renewal of another changes nothing: not the lease, not the connection, not the clock."""
    take(store, "a")
    store.renew("a", client="7", clock=5.0, idle=0)
    client.pexpire(keys.leader, 20_000)
    answer = store.renew("b", client="8", clock=6.0, idle=0)
    assert not answer.held
    assert client.pttl(keys.leader) <= 20_000
    assert client.hmget(keys.leader, "owner", "client", "clock") == [b"a", b"7", b"5.0"]
    assert client.hget(keys.term, "clock") == b"5.0"


def test_a_renewal_records_the_connection_the_clock_and_the_tick(store: LeaderStore, client: Redis, keys: Keys) -> None:
    """It answers the server's time and the stamp; the tick is of the server's clock, as long ago as it was."""
    take(store, "a")
    client.incr(keys.stamp, 3)
    answer = store.renew("a", client="9", clock=42.5, idle=2.0)
    assert (answer.held, answer.stamp) == (True, 3)
    record = store.read()
    assert (record.client, record.clock) == ("9", 42.5)
    assert record.tick == pytest.approx(answer.server - 2.0, abs=0.002)
    store.renew("a", client="9", clock=None, idle=0.0)
    assert store.read().clock == 42.5, "a main loop that has not said anything yet"


def test_only_the_owner_lets_go(store: LeaderStore, client: Redis, keys: Keys) -> None:
    """A release of another changes nothing, and wakes nobody. That of the owner wakes one, and may be repeated."""
    take(store, "a")
    assert not store.release("b")
    assert client.exists(keys.leader)
    assert not client.exists(keys.wake)
    assert store.release("a")
    assert store.release("a"), "the answer was lost: the same again"
    assert client.lrange(keys.wake, 0, -1) == [b"a"]
    take(store, "c")
    assert not store.release("a"), "long over"
    assert ask(store, "d").owner == "c"


def test_a_leader_that_reconnected_is_not_deposed(store: LeaderStore) -> None:
    """Deposed is an owner with the connection that is gone: not one that is back on another, nor one without."""
    take(store, "a", client="7")
    store.renew("a", client="9", clock=None, idle=0)
    assert not store.depose("a", client="7")
    assert not store.depose("b", client="9")
    assert ask(store, "b").owner == "a"
    assert store.depose("a", client="9")
    assert store.depose("a", client="9"), "the answer was lost: the same again"
    take(store, "b", client="")
    assert not store.depose("b", client=""), "one whose connection is not known keeps its lease"
    assert not store.depose("a", client="9")


def test_what_is_kept_has_a_time_to_live(store: LeaderStore, client: Redis, keys: Keys) -> None:
    """No key stays for ever, at any point of a leader's life."""

    def check() -> None:
        for key in client.keys(f"{keys.prefix}*"):
            most = {keys.leader: TTL, keys.term: KEEP, keys.wake: 2.0}[key.decode()]
            left = client.pttl(key)
            assert 0 < left <= most * 1000 or left == -2, key  # -2: it has run out since

    take(store, "a")
    check()
    store.renew("a", client="7", clock=1.0, idle=0)
    check()
    client.delete(keys.term)
    store.renew("a", client="7", clock=1.0, idle=0)
    check()
    client.delete(keys.term)
    store.release("a")
    check()
    take(store, "b")
    client.delete(keys.term)
    store.depose("b", client="7")
    check()


def test_connections_are_looked_up_by_id(client: Redis, keys: Keys, each_redis_url: str) -> None:
    """An id is there as long as its connection is; a name that looks like lines of the list is no client."""
    mine = Redis.from_url(each_redis_url, max_connections=1)
    store, other = LeaderStore(mine, keys, ttl=TTL), LeaderStore(client, keys, ttl=TTL)
    id = store.client_id()
    assert other.is_connected(id) is True
    mine.close()
    until(lambda: other.is_connected(id) is False, within=10, what="the connection to be gone")


# --- a model ------------------------------------------------------------------------------------------------------


def make(client: Redis, unique: str) -> type[RuleBasedStateMachine]:
    numbers = itertools.count()
    beats = st.integers(0, 2)

    class Election(RuleBasedStateMachine):
        """Three beats that stand, renew, let go, die, come back and lag behind, over a server that may forget."""

        @initialize()
        def begin(self) -> None:
            self.keys = Keys(f"{unique}-{next(numbers)}")
            self.store = LeaderStore(client, self.keys, ttl=TTL)
            self.tokens = itertools.count()
            self.owner = [""] * 3
            self.connection = ["100", "200", "300"]
            self.old: list[str] = []
            self.leader: int | None = None
            self.recorded = ""
            self.highest = 0

        @rule(beat=beats, twice=st.booleans())
        def stand(self, beat: int, twice: bool) -> None:
            if self.owner[beat] and self.leader == beat:
                return
            token = f"token-{next(self.tokens)}"
            for _ in range(1 + twice):
                answer = self.store.acquire(token, client=self.connection[beat], identity={}, seen=self.highest)
                if self.leader not in (None, beat):
                    assert isinstance(answer, Holder)
                    assert answer.owner == self.owner[self.leader or 0]
                    assert answer.client == self.recorded
                    continue
                assert isinstance(answer, Taken)
                if self.leader is None:
                    assert answer.term > self.highest, "terms rise with each acquisition"
                    self.leader, self.owner[beat], self.recorded = beat, token, self.connection[beat]
                    self.highest = answer.term
                assert answer.term == self.highest

        @rule(beat=beats)
        def renew(self, beat: int) -> None:
            if self.owner[beat]:
                held = self.store.renew(self.owner[beat], client=self.connection[beat], clock=1.0, idle=0).held
                assert held == (self.leader == beat)
                if held:
                    self.recorded = self.connection[beat]
                else:
                    self.give_up(beat)

        @rule(beat=beats)
        def release(self, beat: int) -> None:
            if self.owner[beat]:
                self.store.release(self.owner[beat])
                if self.leader == beat:
                    self.leader = None
                self.give_up(beat)

        @rule(data=st.data())
        def lag(self, data: st.DataObject) -> None:
            """Words of a lead that is over arrive late."""
            if self.old:
                token = data.draw(st.sampled_from(self.old))
                assert not self.store.renew(token, client="1", clock=None, idle=0).held
                self.store.release(token)
                self.store.depose(token, client="100")

        @rule(beat=beats)
        def reconnect(self, beat: int) -> None:
            self.connection[beat] = str(int(self.connection[beat]) + 1)

        @rule(client_id=st.sampled_from(["100", "200", "201", "300", ""]))
        def depose(self, client_id: str) -> None:
            if self.leader is None:
                return
            done = self.store.depose(self.owner[self.leader], client=client_id)
            assert done == (client_id != "" and client_id == self.recorded)
            if done:
                self.leader = None

        @rule()
        def expire(self) -> None:
            client.delete(self.keys.leader)
            self.leader = None

        @rule()
        def forget(self) -> None:
            client.delete(self.keys.leader, self.keys.term, self.keys.wake)
            self.leader = None

        def give_up(self, beat: int) -> None:
            self.old.append(self.owner[beat])
            self.owner[beat] = ""

        @invariant()
        def one_leads(self) -> None:
            if hasattr(self, "store"):
                found = client.hget(self.keys.leader, "owner")
                mine = None if self.leader is None else self.owner[self.leader].encode()
                assert found == mine
                assert client.llen(self.keys.wake) <= 1, "one word wakes one standby"

    return Election


def test_steps_keep_to_a_model(client: Redis, unique: str) -> None:
    """Whatever three beats do, at most one leads, only it and the loss of its connection end that, and terms rise."""
    run_state_machine_as_test(
        make(client, unique),
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
